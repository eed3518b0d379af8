"""Secure sums and differential privacy: all that they are made of, Flower's side too.

A **secure sum** is one of integers that a server learns without the summands. The protocol is that
of Bell, Bonawitz, Gascón, Lepoint and Raykova, "Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead", 2020. `client` and `server` are its state machines: bytes go in and
come out, and nothing there knows of sockets, models or Flower.

| stage | a client sends | the server then sends |
| --- | --- | --- |
| 1 | public keys (`Advert`) | the keys of all clients (`Roster`) |
| 2 | sealed shares of its secrets (`SealedShares`) | those for each client |
| 3 | its masked tokens (`MaskedInput`) | who the survivors are (`Survivors`) |
| 4 | if keys are signed, a signature of these (`Consent`) | all signatures (`Consents`) |
| 5 | a share of one secret of each neighbour (`Revealed`) | |

A client masks its tokens with a stream that only it knows, and with one for each neighbour that
both know and that cancels in the sum. The first is recovered for survivors, the others for clients
that dropped out, from shares of ``threshold`` neighbours. Nobody's masks are both recovered; why is
in `graph`. `quantizer` makes tokens of an update, and the mean of their sum.

**A server that follows the protocol**, but looks at all it sees, and clients that tell it all they
know, learn the sum of the other survivors' tokens and nothing else, as long as no more clients
collude than `Assumptions` say. A sum over few clients still says much of each.

**A server that does not follow it** can pose as clients, unless keys are signed. If they are, and
clients ask for that, it cannot: each member then has a certificate of its own, and all agree on one
set of survivors. Masks of clients whose tokens are about different models or plans do not cancel,
signed or not. It can still leave clients out, abort rounds, and have clients train in different
ways. Neighbours come from a hash of the roster: a server that has colluding clients change their
keys can try many. Each try takes one from the bits of security at most by its logarithm.

**A client** can make a sum wrong by its tokens, and end a round by shares that are garbage. Three
such rounds in a row end the run, with the names of those who may have sent them. Neither hurts the
privacy of others. A client that goes back to an earlier state and masks other tokens in the same
round gives away their difference: store the new state before its message leaves.

**Differential privacy** is noise on such sums, or on others: `noise` draws it, `ring_noise` adds
shares of it within a ring, and `budget` says what it spends.

`flower_client`, `flower_server` and `flower_average` are the Flower side. The rest knows arrays.
"""
