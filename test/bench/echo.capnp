@0xb7d4a0c5e1f2963a;
# The least that a server can offer: what a call costs as Cap'n Proto comes.

interface Echo {
  call @0 ();
  # Empty both ways.

  pull @1 () -> (values :Data);
  # Everything in one message.
}
