"""A model of tumours, trained by hospitals that keep their records."""
