"""Pictures of the documentation: SVG made from text, the same bytes each time."""
