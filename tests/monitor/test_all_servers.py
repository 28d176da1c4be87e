"""Aggregated samples of several servers."""

from pipeline.monitor.all_servers import SampleSender, aggregate
from pipeline.monitor.row import Row


def test_aggregate_has_mean_and_minimum_of_the_servers_with_a_sample():
    samples = [{"sys/cpu_pct": 10.0, "gpu/util_pct": 90.0}, {}, {"sys/cpu_pct": 30.0}]
    assert aggregate(samples) == {
        "servers/seen": 2,
        "servers/sys/cpu_pct_mean": 20,
        "servers/sys/cpu_pct_min": 10,
        "servers/gpu/util_pct_mean": 90,
        "servers/gpu/util_pct_min": 90,
    }
    assert aggregate([{}, {}]) == {"servers/seen": 0}


def test_a_server_sends_only_percentages_averaged_over_its_gpus():
    sent: list[dict] = []
    sender = SampleSender(sent.append)
    values = {"gpu/0/util_pct": 20.0, "gpu/1/util_pct": 60.0, "gpu/0/power_w": 300.0, "servers/sys/cpu_pct_mean": 5.0}
    sender.write(Row("samples", 1.0, 3, values))
    sender.write(Row("batches", 1.0, 3, {"input/wait_pct": 1.0}))
    assert sent == [{"gpu/util_pct": 40.0}]
