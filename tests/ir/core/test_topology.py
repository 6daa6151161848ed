"""What a topology says of its devices."""

from __future__ import annotations

from ir.core.topology import Device, DeviceType, Host, Topology


def test_devices_of_a_provider_are_numbered_per_host_around_the_numbers_that_are_stated() -> None:
    topology = Topology(
        "@t",
        (DeviceType("gpu", provider="CUDAExecutionProvider"), DeviceType("npu", provider="QNNExecutionProvider")),
        (Host("h"), Host("g")),
        (
            Device("a", "gpu", "h"),
            Device("b", "gpu", "h", device_id=1),
            Device("c", "npu", "h"),
            Device("d", "gpu", "h"),
            Device("e", "gpu", "g"),
        ),
    )
    assert [topology.device_id(device) for device in topology.devices] == [0, 1, 0, 2, 0]
