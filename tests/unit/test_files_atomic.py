from pathlib import Path

import pytest

from queuetheory_llm.errors import InvalidInput
from queuetheory_llm.files.atomic import check_apart, write_atomically


def names(folder):
    return [path.name for path in folder.iterdir()]


def test_bytes_and_writers(tmp_path):
    target = tmp_path / "out.txt"
    write_atomically(target, b"one")
    assert target.read_bytes() == b"one"
    write_atomically(target, lambda file: [file.write(part) for part in (b"t", b"wo")])
    assert target.read_bytes() == b"two"
    assert names(tmp_path) == ["out.txt"]


def test_a_writer_that_fails_leaves_the_old_file_and_no_other(tmp_path):
    target = tmp_path / "out.txt"
    target.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise KeyError("no")

    with pytest.raises(KeyError):
        write_atomically(target, fail)
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["out.txt"]


def test_a_full_disk_is_one_line(tmp_path):
    def full(_):
        raise OSError(28, "No space left on device")

    with pytest.raises(InvalidInput, match="No space left on device") as error:
        write_atomically(tmp_path / "out", full)
    assert len(error.value.faults) == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize(("path", "what"), [("no/such/out", "create it first"), ("", "is a directory")], ids=repr)
def test_bad_targets(tmp_path, path, what):
    with pytest.raises(InvalidInput, match=what):
        write_atomically(tmp_path / path, b"x")
    assert names(tmp_path) == []


def test_devices_are_not_replaced():
    with pytest.raises(InvalidInput, match="not a regular file"):
        write_atomically("/dev/null", b"x")
    assert Path("/dev/null").is_char_device()


def test_a_link_is_followed_and_the_mode_is_the_usual_one(tmp_path):
    target, link, usual = tmp_path / "real", tmp_path / "link", tmp_path / "usual"
    usual.write_bytes(b"")
    target.write_bytes(b"")
    link.symlink_to(target)
    write_atomically(link, b"x")
    assert link.is_symlink()
    assert target.read_bytes() == b"x"
    assert target.stat().st_mode == usual.stat().st_mode


def test_a_file_is_not_written_over_another_of_the_same_command(tmp_path):
    model, link = tmp_path / "model.toml", tmp_path / "link.csv"
    model.write_text("")
    link.symlink_to(model)
    check_apart({"-o": tmp_path / "x.svg", "--series": tmp_path / "x.csv", "--batch-log": None}, {"the model": model})
    with pytest.raises(InvalidInput, match=r"--series: .*link.csv is the file of the model; write to another one"):
        check_apart({"--series": link}, {"the model": model})
    with pytest.raises(InvalidInput, match=r"--batch-log: .* is the file of --series"):
        check_apart({"--series": tmp_path / "x", "--batch-log": f"{tmp_path}/./x"}, {})


def test_a_zero_byte_in_a_path_is_one_line():
    for outputs, inputs in (({"--certificate": "a\0b"}, {}), ({}, {"FILE": "a\0b"})):
        with pytest.raises(InvalidInput, match="no possible path") as refused:
            check_apart(outputs, inputs)
        assert refused.value.faults[0].isprintable()
