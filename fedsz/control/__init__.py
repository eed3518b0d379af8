"""When and how hard to compress, decided anew before every round from what is known of the last."""
