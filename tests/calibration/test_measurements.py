"""The table of measurements: what it may hold, what is refused in one sentence, parts of a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from raddle.calibration.measurements import Measurement, part_of_cluster, read_measurements
from raddle.clusters import cluster
from raddle.errors import InputError

HEAD = "model,batch,devices,method,sync,samples_per_s,step_ms,use\n"


def written(folder: Path, text: str) -> str:
    file = folder / "measured.csv"
    file.write_text(text)
    return str(file)


def test_reads(tmp_path: Path) -> None:
    text = HEAD + 'vgg16,32,1,data,,181,,\n\nvgg16,64,1x2,owt,"ps:sliced,after",,50,held-out\n'
    assert read_measurements(written(tmp_path, text)) == [
        Measurement("vgg16", 32, "1", "data", "", "allreduce", 181.0, 0.0, False),
        Measurement("vgg16", 64, "1x2", "owt", "", "ps:sliced,after", 0.0, 50.0, True),
    ]
    text = "plan,samples_per_s,source\na.json,64,a paper\n"
    (measurement,) = read_measurements(written(tmp_path, text))
    assert (measurement.plan, measurement.step_seconds(32)) == ("a.json", 0.5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no measurement to fit"),
        (HEAD, "has no measurement to fit"),
        (HEAD + "vgg16,32,1,data,,181,,held-out\n", "has no measurement to fit"),
        ("modle,batch\n", "has a column 'modle': the columns are model, batch"),
        (HEAD + "vgg16,32,1,data,,181,,fit,9\n", "line 2: it has more cells than the header line"),
        (HEAD + "vgg16,32,1,data,,181,,maybe\n", "line 2: use is 'maybe': write fit or held-out"),
        (HEAD + "vgg16,32,1,dta,,181,,\n", "line 2: no method 'dta'"),
        (HEAD + "vgg16,32,1,data,ring,181,,\n", "line 2: sync is 'ring'"),
        (HEAD + "vgg16,0,1,data,,181,,\n", "batch is '0': write a whole number"),
        (HEAD + "vgg16,32,1,data,,fast,,\n", "samples_per_s is 'fast': write a positive number"),
        (HEAD + "vgg16,32,1,data,,0,,\n", "samples_per_s is '0': write a positive number"),
        (HEAD + "vgg16,32,1,data,,nan,,\n", "samples_per_s is 'nan'"),
        (HEAD + "vgg16,32,1,data,,181,5,\n", "write either samples_per_s or step_ms"),
        (HEAD + "vgg16,32,1,data,,,,\n", "write either samples_per_s or step_ms"),
        (HEAD + "vgg16,32,,data,,181,,\n", "it names no devices"),
        (HEAD + ",32,1,data,,181,,\n", "it names no model"),
        ("plan,method,samples_per_s\na,data,1\n", "either a method or the path of a plan"),
        ("plan,batch,samples_per_s\na,8,1\n", "a plan file names model, batch and sync"),
    ],
)
def test_refuses(text: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        read_measurements(written(tmp_path, text))
    assert sentence in str(error.value)


def test_parts_of_a_cluster() -> None:
    whole = cluster("p100:4x4")
    sizes = {
        devices: [len(part.members(a)) for a in range(part.nodes)]
        for devices in ("1", "6", "16", "4x1", "2x3", "1x4")
        for part in [part_of_cluster(whole, devices)]
    }
    assert sizes == {
        "1": [1], "6": [4, 2], "16": [4] * 4, "4x1": [1] * 4, "2x3": [3, 3], "1x4": [4]
    }  # fmt: skip
    assert part_of_cluster(whole, "2x4") == whole.first_devices(8)
    for devices in ("0", "17", "5x1", "1x5", "0x2", "four", "1x", "-1"):
        with pytest.raises(InputError, match="devices is"):
            part_of_cluster(whole, devices)
