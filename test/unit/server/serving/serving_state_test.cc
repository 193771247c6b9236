#include "server/serving/serving_state.h"

#include "test/support/catch.h"

namespace psd::serving_state_test {
namespace {

using Peer = ServingState::Peer;

constexpr uint64_t kMove = 7;
const RecordedMove kThere{kMove, {{"tcp://new:1", "unix:///new"}, {"tcp://next:1"}}};

/// The state after `change` of the move away, which must succeed.
template <class Change>
void away(ServingState& state, Change change) {
  PSD_REQUIRE_OK(state.changeOutgoing([&](auto& move) -> Status {
    change(move);
    return {};
  }));
  CHECK(state.checkInvariants() == "");
}

std::string text(const std::optional<Error>& error) { return error ? error->message : ""; }

TEST_CASE("ServingState: a daemon without a replica set serves, and one with a replica set in its term") {
  ServingState state;
  CHECK(state.admits(Peer::trainer));
  CHECK(state.mayUpdate());
  CHECK(state.term() == 0);
  state.withhold(ServingPhase::standby, {ErrorCode::standby, "it is the standby"});
  CHECK(text(state.rejection(Peer::reader)) == "it is the standby");
  CHECK_FALSE(state.mayUpdate());
  CHECK(state.phase() == ServingPhase::standby);
  CHECK_FALSE(state.servesModel());
  state.serve(3);
  CHECK(state.servesModel());
  CHECK(state.admits(Peer::trainer));
  CHECK(state.term() == 3);
  state.withhold(ServingPhase::ended, {ErrorCode::standby, "it has stepped down"});
  state.stepDown();
  CHECK(state.term() == 0);
  CHECK(state.continuesElsewhere());
  CHECK(state.checkInvariants() == "");
}

TEST_CASE("ServingState: while a model is about to move, known trainers return until all are quiesced") {
  ServingState state;
  away(state, [](auto& move) { move.begin(kThere, 0); });
  CHECK(state.admits(Peer::reader));
  CHECK(state.admits(Peer::returningTrainer));
  CHECK(text(state.rejection(Peer::trainer)) == "the model is about to move to other daemons; try again");
  CHECK(state.mayUpdate());
  away(state, [](auto& move) { move.settle(); });
  CHECK_FALSE(state.admits(Peer::returningTrainer));
  away(state, [](auto& move) { PSD_REQUIRE_OK(move.quiesce(kMove)); });
  CHECK_FALSE(state.mayUpdate());
  CHECK(state.servesModel());
  CHECK(state.mayReconfigure().message() == "a move of the model to other daemons is under way; try again");
  SECTION("it is aborted") {
    away(state, [](auto& move) { CHECK(move.abandon(kMove)); });
    CHECK(state.admits(Peer::trainer));
    CHECK(state.outgoing().asks() == 0);
    CHECK(state.outcome(kMove, true) == MoveOutcome::stays);
    CHECK(state.outcome(kMove, false) == MoveOutcome::unknown);
  }
  SECTION("it is recorded") {
    away(state, [](auto& move) { PSD_REQUIRE_OK(move.commit(kMove)); });
    CHECK(state.undecided());
    CHECK_FALSE(state.servesModel());
    away(state, [](auto& move) { CHECK_FALSE(move.abandon(kMove)); });
    away(state, [](auto& move) { move.written(OutgoingMoveState::Written::yes); });
    CHECK(state.phase() == ServingPhase::moved);
    CHECK(text(state.rejection(Peer::reader)) ==
          "the model has moved to tcp://new:1,unix:///new tcp://next:1");
    CHECK(state.view().moved() == kThere);
    CHECK(state.outcome(kMove, false) == MoveOutcome::committed);
  }
  SECTION("it is unknown whether it is recorded") {
    away(state, [](auto& move) { PSD_REQUIRE_OK(move.commit(kMove)); });
    away(state, [](auto& move) { move.written(OutgoingMoveState::Written::unknown); });
    CHECK(state.undecided());
    CHECK(text(state.rejection(Peer::reader)) ==
          "it is unknown whether the model has moved to other daemons");
    CHECK(state.outcome(kMove, true) == MoveOutcome::underWay);
  }
}

TEST_CASE("ServingState: a source that another one leads asks whether a move that it aborted counts") {
  ServingState state;
  away(state, [](auto& move) { move.begin(kThere, 5); });
  away(state, [](auto& move) { move.settle(); });
  away(state, [](auto& move) { PSD_REQUIRE_OK(move.quiesce(kMove)); });
  away(state, [](auto& move) { CHECK(move.abandon(kMove)); });
  CHECK(state.outgoing().asks() == kMove);
  CHECK(state.admits(Peer::trainer));
  using Next = OutgoingMoveState::Next;
  const auto answered = [&](MoveOutcome outcome) {
    return state.changeOutgoing([&](auto& move) { return move.answered(kMove, outcome); });
  };
  CHECK(answered(MoveOutcome::underWay) == Next::again);
  SECTION("it does not") {
    CHECK(answered(MoveOutcome::stays) == Next::done);
    CHECK(state.outgoing().asks() == 0);
  }
  SECTION("it does, but the record cannot be written yet") {
    CHECK(answered(MoveOutcome::committed) == Next::commit);
    CHECK(state.undecided());
    away(state, [](auto& move) { move.written(OutgoingMoveState::Written::no); });
    CHECK(state.admits(Peer::trainer));
    CHECK(answered(MoveOutcome::committed) == Next::commit);
  }
}

TEST_CASE("ServingState: a model that arrives is served once its move is committed") {
  ServingState state;
  const auto arrive = [&](auto change) {
    PSD_REQUIRE_OK(state.changeIncoming(change));
    CHECK(state.checkInvariants() == "");
  };
  CHECK_FALSE(state.changeIncoming([](auto& move) { return move.begin(kMove, true); }).ok());
  arrive([](auto& move) { return move.begin(kMove, false); });
  CHECK(state.phase() == ServingPhase::arriving);
  CHECK(state.mayReconfigure().message() == "a move of the model from other daemons is under way; try again");
  CHECK_FALSE(state.changeIncoming([](auto& move) { return move.place(kMove); }).ok());  // terms are unknown
  arrive([](auto& move) { return move.propose(kMove, {5, {"tcp://old:1"}}); });
  arrive([](auto& move) -> Status {
    move.accept();
    return move.place(kMove);
  });
  CHECK(state.changeIncoming([](auto& move) { return move.abandon(kMove); }) ==
        IncomingMoveState::Abandon::nothing);
  CHECK(state.changeIncoming([](auto& move) { return move.placed(); }));  // its lead must be asked
  CHECK_FALSE(state.admits());
  SECTION("it counts") {
    PSD_REQUIRE_OK(state.incoming().mayCommit(kMove));
    arrive([](auto& move) -> Status {
      move.commit();
      return {};
    });
    CHECK_FALSE(state.admits());
    arrive([](auto& move) -> Status {
      move.committed(true);
      return {};
    });
    CHECK(state.admits(Peer::trainer));
    CHECK(state.outcome(kMove, false) == MoveOutcome::committed);
  }
  SECTION("it does not") {
    CHECK(state.incoming().answered(kMove, MoveOutcome::stays) == IncomingMoveState::Next::forget);
    arrive([](auto& move) -> Status {
      move.forget();
      return {};
    });
    CHECK_FALSE(state.incoming().mayCommit(kMove).ok());
    arrive([](auto& move) -> Status {
      move.forgotten(true);
      return {};
    });
    CHECK(state.admits(Peer::trainer));
  }
}

TEST_CASE("ServingState: a daemon that exits rejects everyone with the reason, and updates by stages") {
  ServingState state;
  CHECK_FALSE(state.view().draining());
  state.stop({ErrorCode::unavailable, "restarting"}, true);
  CHECK(text(state.rejection(Peer::reader)) == "restarting");
  CHECK(state.continuesElsewhere());
  CHECK_FALSE(state.mayMove().ok());
  CHECK_FALSE(state.mayArrive().ok());
  state.stop({ErrorCode::shuttingDown, "the run is over"}, false);
  CHECK_FALSE(state.continuesElsewhere());
  state.drain();
  CHECK(state.view().updates() == ServingView::Updates::inFlight);
  state.close();
  CHECK(state.view().updates() == ServingView::Updates::none);
}

}  // namespace
}  // namespace psd::serving_state_test
