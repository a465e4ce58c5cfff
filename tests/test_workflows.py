"""The workflows, templates and the checklist agree with the repository."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def steps(path: Path) -> list[str]:
    """Return the commands of a workflow."""
    jobs = yaml.safe_load(path.read_text())["jobs"].values()
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_scripts_and_extras_that_exist(path):
    for command in steps(path):
        program, *arguments = command.split()
        if program.startswith(("scripts/", ".ci/")):
            assert (ROOT / program).stat().st_mode & 0o100
        if program == "scripts/install":
            assert set(arguments[0].split(",")) <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_needs_jobs_that_exist_and_only_publishing_may_write(path):
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert set(job.get("needs", ())) <= workflow["jobs"].keys()
        assert ("permissions" in job) == (name == "publish")


def test_the_matrix_has_the_versions_of_the_classifiers():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    versions = workflow["jobs"]["test"]["strategy"]["matrix"]["python"]
    prefix = "Programming Language :: Python :: 3."
    assert versions == [
        c.rpartition(" ")[2] for c in PROJECT["classifiers"] if c.startswith(prefix)
    ]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    script = (ROOT / "scripts" / "check-package").read_text()
    quoted = ", ".join(f'"{version}"' for version in versions)
    assert f"VERSIONS = ({quoted})" in script


def test_templates_of_issues_are_complete():
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        template = yaml.safe_load(path.read_text())
        if path.stem != "config":
            assert {"name", "description", "body"} <= template.keys()
            assert all("label" in part["attributes"] for part in template["body"])


def test_no_page_installs_the_package_from_an_index_that_does_not_have_it():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    for page in pages:
        assert not re.search(r"pip install [^\n`]*\bfedtern\b", page.read_text()), page
