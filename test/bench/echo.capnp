@0xb7d4a0c5e1f2963a;
# The minimal service: the cost of a plain Cap'n Proto call.

interface Echo {
  call @0 ();
  # Empty in both directions.

  pull @1 () -> (values :Data);
  # Everything in one message.
}
