"""Files by which a CI runs a document on every pull request, and publishes the report."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankwise.errors import InputError

_PATH = re.compile(r"[\w][\w./-]*")

_INSTALL = 'python -m pip install "rankwise[mpi]"'
_RUN = "rankwise run @DOCUMENT@ --junit results.xml --markdown summary.md"
_REPORT = "rankwise report --html report.html"

_GITHUB = f"""\
# Runs a suite on every pull request. Failures show beside the lines that they are about, in the
# summary of the job, and in a report to download.
name: rankwise

on:
  pull_request:
  push:
    branches: [main]

permissions:
  contents: read

jobs:
  suite:
    runs-on: ubuntu-latest
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - name: Install
        run: {_INSTALL}
      - name: Run the suite
        run: {_RUN}
      - name: Write the report
        if: always()
        run: {_REPORT}
      - name: Keep the report
        if: always()
        uses: actions/upload-artifact@v4
        with:
          name: rankwise
          path: |
            report.html
            results.xml
            summary.md
"""

_GITLAB = f"""\
# Runs a suite on every merge request. Its tests show there, and the report is kept.
suite:
  image: python:3.12
  timeout: 1 hour
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
    - if: $CI_COMMIT_BRANCH == $CI_DEFAULT_BRANCH
  before_script:
    - {_INSTALL}
  script:
    - {_RUN}
  after_script:
    - {_REPORT}
  artifacts:
    when: always
    paths:
      - report.html
      - summary.md
    reports:
      junit: results.xml
"""

_AZURE = f"""\
# Runs a suite on every pull request. Its tests show on the page of the run, and the report is kept.
trigger:
  - main

pr:
  branches:
    include:
      - "*"

pool:
  vmImage: ubuntu-latest

steps:
  - task: UsePythonVersion@0
    inputs:
      versionSpec: "3.12"
  - script: {_INSTALL}
    displayName: Install
  - script: {_RUN}
    displayName: Run the suite
  - script: {_REPORT}
    displayName: Write the report
    condition: succeededOrFailed()
  - task: PublishTestResults@2
    displayName: Publish the results
    condition: succeededOrFailed()
    inputs:
      testResultsFormat: JUnit
      testResultsFiles: results.xml
      failTaskOnMissingResultsFile: true
  - task: PublishPipelineArtifact@1
    displayName: Keep the report
    condition: succeededOrFailed()
    inputs:
      targetPath: report.html
      artifact: rankwise
"""

_JENKINS = f"""\
// Runs a suite. A multibranch pipeline builds every pull request with it.
pipeline {{
    agent any
    options {{
        timeout(time: 1, unit: 'HOURS')
    }}
    stages {{
        stage('Install') {{
            steps {{
                sh 'python3 -m venv .venv'
                sh '.venv/bin/{_INSTALL}'
            }}
        }}
        stage('Suite') {{
            steps {{
                sh '.venv/bin/{_RUN}'
            }}
        }}
    }}
    post {{
        always {{
            sh '.venv/bin/{_REPORT}'
            junit 'results.xml'
            archiveArtifacts artifacts: 'report.html, summary.md'
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CiFile:
    """What a CI reads, and where it looks for it."""

    path: str
    text: str


_FILES = {
    "github": CiFile(path=".github/workflows/rankwise.yml", text=_GITHUB),
    "gitlab": CiFile(path=".gitlab-ci.yml", text=_GITLAB),
    "azure": CiFile(path="azure-pipelines.yml", text=_AZURE),
    "jenkins": CiFile(path="Jenkinsfile", text=_JENKINS),
}
SERVICES = tuple(_FILES)


def ci_file(service: str, document: str) -> CiFile:
    """Give the file for a service; raises InputError if there is none, or the name is too odd."""
    if service not in _FILES:
        import difflib

        near = difflib.get_close_matches(service, SERVICES, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise InputError(f"--ci {service}: there is {', '.join(SERVICES)}{meant}")
    if not _PATH.fullmatch(document):
        raise InputError(
            f"{document!r}: a path in a CI file is made of letters, digits and . _ - /, and begins "
            "in the folder of the repository"
        )
    found = _FILES[service]
    return CiFile(path=found.path, text=found.text.replace("@DOCUMENT@", document))
