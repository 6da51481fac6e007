"""The stage that verifies an image: reads artifacts, writes outcomes and evidence."""
