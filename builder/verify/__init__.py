"""The stage that proves an image: artifacts in, outcomes and evidence out."""
