"""What the training would import besides."""

import json  # noqa: F401 - stands for what is only imported
