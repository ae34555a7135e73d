"""A verdict shown: on the terminal, and as one self-contained page. JSON is `verdict.as_document`."""
