"""The trainers: one plain function per method, each over a TRL trainer. Importing this package loads no torch."""
