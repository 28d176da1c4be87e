"""Help, version, examples and extras of the command line."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generate import commands
from pipeline import __version__
from pipeline.__main__ import main
from pipeline.commands.command import PACKAGES, Command
from pipeline.commands.parser import COMMANDS, command_line, parse
from pipeline.config.settings import Settings
from tests.conftest import jpeg


def test_the_command_line_without_arguments_lists_commands_but_no_settings(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 0
    overview = capsys.readouterr().out
    assert "build " in overview
    assert "first steps" in overview
    assert "label_smoothing" not in overview


def test_the_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"tenfold {__version__}\n"


@pytest.mark.parametrize(("on_the_path", "name"), [(True, "tenfold"), (False, "./bin/tenfold")])
def test_the_help_names_the_program_as_a_shell_finds_it(
    on_the_path: bool,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    program = tmp_path / "bin" / "tenfold"
    program.parent.mkdir()
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(program.parent if on_the_path else tmp_path))
    monkeypatch.setattr("sys.argv", ["./bin/tenfold"])
    main([])
    assert f"\n  {name} samples shapes\n" in capsys.readouterr().out


@pytest.mark.parametrize("rest", [[], ["--help"], ["upload"]])
def test_the_first_word_of_commands_of_two_words_names_these(rest: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        parse(["comet", *rest])
    assert "`comet` must be followed by another word. The commands are: comet recover" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("bild", "`bild` is not a command: did you mean build?"),
        ("champio", "`champio` is not a command: did you mean champion?"),
        ("xyz", "`xyz` is not a command. The commands are: run, build, "),
    ],
)
def test_an_unknown_command_gets_one_sentence(word: str, sentence: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main([word, "--set", "epochs=3"])
    assert f"error: {sentence}" in capsys.readouterr().err


def test_the_warning_on_allowlists_comes_once_and_not_beside_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("TENFOLD_ALLOWED_SOURCES", "*")
    settings = [f"--set=workspace={tmp_path / 'w'}", "--set=dataset_name=a"]
    assert main(["extract", f"--set=source_uri={tmp_path / 'missing'}", *settings]) == 1
    assert "everything" not in caplog.text
    for name in "ab":
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.jpg").write_bytes(jpeg(1))
    assert main(["extract", f"--set=source_uri={tmp_path / 'images'}", *settings]) == 0
    assert caplog.text.count("everything: a run can access everything") == 1


def test_every_command_has_a_valid_example():
    names = list(commands(command_line()))
    assert [command.name for command in COMMANDS] == names
    for command in COMMANDS:
        options = parse([*command.name.split(), *shlex.split(command.example)])
        assert options.command is command
        assert {each.partition("=")[0] for each in options.set} <= Settings.model_fields.keys()


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.extra])
def test_a_command_without_its_extra_names_the_missing_package(
    command: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    package = PACKAGES[command.extra]
    monkeypatch.setattr("pipeline.commands.command.find_spec", lambda name: None if name == package else object())
    assert main([*command.name.split(), *shlex.split(command.example)]) == 1
    assert f"`{command.name}` needs {package}" in capsys.readouterr().err


def test_building_a_dataset_needs_no_extra():
    """The base package alone builds a dataset, so these imports must not need an extra."""
    modules = (
        "pipeline.commands.parser, pipeline.stages.build, pipeline.report, pipeline.dataset.verify, "
        "pipeline.sharding.window, pipeline.runs.champion"
    )
    extras = ("airflow", "bokeh", "comet_ml", "keras", "pandas", "tensorflow")
    code = f"import sys\nfor name in {extras}: sys.modules[name] = None\nimport {modules}"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
