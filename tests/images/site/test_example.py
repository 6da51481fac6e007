"""An example of a site's own test: jobs write to their home and to shared memory."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("folder", ["$HOME", "/dev/shm"])
def test_a_job_can_write(inside, folder):
    done = inside.run("sh", "-c", f'file=$(mktemp "{folder}/site.XXXXXX") && rm "$file"')
    assert done.returncode == 0, done.stderr
