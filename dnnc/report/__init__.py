"""What people see: tables, units, summaries of models and plans, timelines."""

from dnnc.report.plan import plan_headline, plan_table, proof_text, stage_seconds
from dnnc.report.summary import ModelSummary, summarize, summary_text
from dnnc.report.tables import Column, Table, columns, key_values, print_table, table_text
from dnnc.report.topology import topology_text
from dnnc.report.units import bytes_text, count_text, percent_text, rate_text, ratio_text, seconds_text

__all__ = [
    "Column",
    "ModelSummary",
    "Table",
    "bytes_text",
    "columns",
    "count_text",
    "key_values",
    "percent_text",
    "plan_headline",
    "plan_table",
    "print_table",
    "proof_text",
    "rate_text",
    "ratio_text",
    "seconds_text",
    "stage_seconds",
    "summarize",
    "summary_text",
    "table_text",
    "topology_text",
]
