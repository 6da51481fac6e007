"""Site policies: the rules that an image must satisfy before it is pulled."""
