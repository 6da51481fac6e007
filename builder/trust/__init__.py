"""Keys, signatures, attestations and the policies that ask for them."""
