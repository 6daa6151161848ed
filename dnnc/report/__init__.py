"""What people see: tables, units, summaries of models and plans, timelines (``gantt``), and a web page (``page``).

``summary`` is of a module, ``sharding`` of a plan on meshes."""

from dnnc.report.plan import idle_devices, idle_text, plan_headline, plan_table, proof_text
from dnnc.report.sharding import (
    block_json,
    block_table,
    comparison_rows,
    comparison_table,
    layers_json,
    layers_table,
    mesh_axes,
    mesh_shares,
    mesh_text,
    shares_lines,
    stages_table,
)
from dnnc.report.summary import ModelSummary, summarize, summary_text
from dnnc.report.tables import Column, Table, columns, key_values, print_table, table_text
from dnnc.report.timeline import (
    DeviceTime,
    TimelineSummary,
    compare_table,
    summarize_timeline,
    timeline_table,
    timeline_text,
)
from dnnc.report.topology import topology_text
from ir.text.units import bytes_text, count_text, percent_text, rate_text, ratio_text, seconds_text

__all__ = [
    "Column",
    "DeviceTime",
    "ModelSummary",
    "Table",
    "TimelineSummary",
    "block_json",
    "block_table",
    "bytes_text",
    "columns",
    "compare_table",
    "comparison_rows",
    "comparison_table",
    "count_text",
    "idle_devices",
    "idle_text",
    "key_values",
    "layers_json",
    "layers_table",
    "mesh_axes",
    "mesh_shares",
    "mesh_text",
    "percent_text",
    "plan_headline",
    "plan_table",
    "print_table",
    "proof_text",
    "rate_text",
    "ratio_text",
    "seconds_text",
    "shares_lines",
    "stages_table",
    "summarize",
    "summarize_timeline",
    "summary_text",
    "table_text",
    "timeline_table",
    "timeline_text",
    "topology_text",
]
