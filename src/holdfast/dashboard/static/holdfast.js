// What pages gain from JavaScript; each of them works without.
