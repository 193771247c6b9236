// A real etcd whose members die, stall, or cannot be reached.

#include <csignal>

#include <nlohmann/json.hpp>

#include "test/contract/engine_rig.h"

namespace psd::etcd_faults_test {
namespace {

using testing::EngineLoop;
using testing::EngineProxy;
using testing::EtcdProcess;

const std::string kKey = "/psd/test/plan";

/// The index of the leading member.
size_t leaderOf(EngineLoop& loop, const EtcdProcess& process) {
  const EtcdOptions options{.members = process.members()};
  for (;;) {
    for (size_t i = 0; i < process.members().size(); i++) {
      EtcdEndpoint member(loop.network(), loop.timer(), options, process.members()[i], "");
      const auto status = loop.wait(member.post("/v3/maintenance/status", "{}"));
      if (!status.ok()) continue;
      const auto json = nlohmann::json::parse(*status);
      if (json.contains("leader") && json["leader"] == json["header"]["member_id"]) return i;
    }
    loop.wait(loop.timer().afterDelay(10 * kj::MILLISECONDS));
  }
}

/// Swaps until one succeeds; a value that was written without an answer counts.
Stored swapUntilSuccess(EngineLoop& loop, Engine& engine, Stored now, const std::string& text) {
  const kj::TimePoint end = loop.timer().now() + 60 * kj::SECONDS;
  for (;;) {
    const auto swapped = loop.wait(engine.swap(kKey, now.revision, text));
    if (swapped.ok()) {
      REQUIRE(swapped->won);
      return swapped->now;
    }
    INFO(swapped.message());
    REQUIRE(loop.timer().now() < end);
    CHECK(swapped.error().code == ErrorCode::unavailable);
    loop.wait(loop.timer().afterDelay(5 * kj::MILLISECONDS));
  }
}

TEST_CASE("the leader of three is killed amid swaps: no answered one is lost, none is applied twice") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop, 3);
  const auto engine = loop.fastRetryEtcd(process->members()), other = loop.fastRetryEtcd(process->members());
  Stored now;
  for (int i = 1; i <= 60; i++) {
    if (i == 20) process->kill(leaderOf(loop, *process));
    const Stored next = swapUntilSuccess(loop, *engine, now, "text " + std::to_string(i));
    CHECK(next.revision == now.revision + 1 + (now.revision == 0 ? next.revision - 1 : 0));
    const auto seen = loop.wait(other->read(kKey));
    if (seen.ok()) CHECK(*seen == next);
    now = next;
  }
}

TEST_CASE("a stalled leader is bypassed, and its return changes nothing") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop, 3);
  const auto engine = loop.fastRetryEtcd(process->members());
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  auto changed = loop.fastRetryEtcd(process->members());
  auto heard = changed->changed(kKey, first.revision);
  const size_t leader = leaderOf(loop, *process);
  process->signal(leader, SIGSTOP);
  const Stored second = swapUntilSuccess(loop, *engine, first, "second");
  CHECK(loop.wait(kj::mv(heard)).value() == second);
  process->signal(leader, SIGCONT);
  const Stored third = swapUntilSuccess(loop, *engine, second, "third");
  CHECK(loop.readUntilAnswered(*engine, kKey) == third);
  // Asked alone it knows the current value, too.
  const auto alone = loop.fastRetryEtcd({process->members()[leader]});
  CHECK(loop.readUntilAnswered(*alone, kKey) == third);
}

TEST_CASE("without two of three members no call is answered, and one that returns is enough") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop, 3);
  const auto engine = loop.fastRetryEtcd(process->members());
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  process->kill(0);
  process->kill(1);
  const auto read = loop.wait(engine->read(kKey));
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == ErrorCode::unavailable);
  const auto swapped = loop.wait(engine->swap(kKey, first.revision, "second"));
  REQUIRE_FALSE(swapped.ok());
  CHECK(swapped.error().code == ErrorCode::unavailable);
  auto heard = engine->changed(kKey, first.revision);
  process->restart(0);
  const Stored second = swapUntilSuccess(loop, *engine, first, "second");
  CHECK(second.revision == first.revision + 1);
  CHECK(loop.wait(kj::mv(heard)).value() == second);
}

TEST_CASE("a swap goes to all members and happens once, whichever answers first") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  const EtcdMember member = process->members().front();
  EngineProxy way(loop, member), detour(loop, member);
  const auto engine = loop.etcd({member, way.member(), detour.member()});
  Stored now = swapUntilSuccess(loop, *engine, {}, "0");
  for (int i = 1; i <= 100; i++) {
    const auto swapped = loop.wait(engine->swap(kKey, now.revision, std::to_string(i)));
    PSD_REQUIRE_OK(swapped);
    REQUIRE(swapped->won);
    REQUIRE(swapped->now.revision == now.revision + 1);
    now = swapped->now;
  }
  CHECK(loop.wait(engine->read(kKey)).value() == now);
}

TEST_CASE("a swap with a lost answer is unknown, and resolved by asking again") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  EngineProxy proxy(loop, process->members().front());
  const auto engine = loop.fastRetryEtcd({proxy.member()}), patient = loop.etcd({proxy.member()});
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  proxy.swallowAnswers(true);
  const auto unknown = loop.wait(engine->swap(kKey, first.revision, "second"));
  REQUIRE_FALSE(unknown.ok());
  CHECK(unknown.error().code == ErrorCode::unavailable);
  CHECK(unknown.message() == "etcd: no answer: " + proxy.member().toString() + ": no answer within 250 ms");
  proxy.swallowAnswers(false);
  proxy.cut();
  const Stored there = loop.readUntilAnswered(*engine, kKey);
  CHECK(there.text == "second");
  const auto again = loop.wait(patient->swap(kKey, first.revision, "second"));
  PSD_REQUIRE_OK(again);
  CHECK(again->won);
  CHECK(again->now == there);
}

TEST_CASE("a member that does not answer costs nothing if another does") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  EngineProxy silent(loop, process->members().front());
  silent.swallowAnswers(true);
  const auto engine = loop.etcd({silent.member(), process->members().front()});
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  CHECK(loop.wait(engine->read(kKey)).value() == first);
  auto heard = engine->changed(kKey, first.revision);
  const Stored second = swapUntilSuccess(loop, *engine, first, "second");
  CHECK(loop.wait(kj::mv(heard)).value() == second);
  CHECK(silent.asked() > 0);
}

TEST_CASE("a watch that breaks is restarted, and reads replace one that is silent") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  const auto writer = loop.etcd(process->members());
  EngineProxy proxy(loop, process->members().front());
  // Reads would take an hour.
  EtcdOptions patient = EngineLoop::patient({proxy.member()});
  patient.pollMs = 3'600'000;
  const auto watcher = loop.etcd(patient);
  const Stored first = swapUntilSuccess(loop, *writer, {}, "first");
  auto heard = watcher->changed(kKey, first.revision);
  CHECK_FALSE(loop.resolvedWithin(50, heard));
  proxy.cut();
  const Stored second = swapUntilSuccess(loop, *writer, first, "second");
  CHECK(loop.wait(kj::mv(heard)).value() == second);

  EtcdOptions eager{.members = {proxy.member()}, .pollMs = 20};
  const auto reader = loop.etcd(eager);
  auto told = reader->changed(kKey, second.revision);
  CHECK_FALSE(loop.resolvedWithin(50, told));
  proxy.swallowAnswers(true);
  const Stored third = swapUntilSuccess(loop, *writer, second, "third");
  CHECK_FALSE(loop.resolvedWithin(50, told));
  proxy.swallowAnswers(false);
  CHECK(loop.wait(kj::mv(told)).value() == third);
}

TEST_CASE("with etcd away errors name it, and a waiter is notified of a change after its return") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  const auto engine = loop.fastRetryEtcd(process->members());
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  auto heard = engine->changed(kKey, first.revision);
  process->kill(0);
  // The first may find a connection that is just closing.
  const std::string member = process->members().front().toString();
  const auto read = loop.wait(engine->read(kKey)), again = loop.wait(engine->read(kKey));
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().code == ErrorCode::unavailable);
  CHECK(read.message().starts_with("etcd: no answer: " + member + ": "));
  REQUIRE_FALSE(again.ok());
  CHECK(again.message() == "etcd: no answer: " + member + ": Connection refused");
  CHECK_FALSE(loop.resolvedWithin(300, heard));
  process->restart(0);
  const Stored second = swapUntilSuccess(loop, *engine, first, "second");
  CHECK(loop.wait(kj::mv(heard)).value() == second);
}

TEST_CASE("a caller that only waits for a change learns that etcd is away, and when it is back") {
  EngineLoop loop;
  const auto process = testing::etcdOrSkip(loop);
  const auto engine = loop.fastRetryEtcd(process->members());
  const Stored first = swapUntilSuccess(loop, *engine, {}, "first");
  CHECK(engine->trouble().empty());
  auto heard = engine->changed(kKey, first.revision);
  const auto until = [&](bool troubled) {
    const kj::TimePoint end = loop.timer().now() + 60 * kj::SECONDS;
    while (engine->trouble().empty() == troubled && loop.timer().now() < end) {
      REQUIRE_FALSE(loop.resolvedWithin(5, heard));
    }
    return engine->trouble();
  };
  process->kill(0);
  CHECK(until(true).starts_with("etcd: no answer: " + process->members().front().toString() + ": "));
  process->restart(0);
  CHECK(until(false).empty());
  process->signal(0, SIGSTOP);  // connections stay
  CHECK_FALSE(until(true).empty());
  process->signal(0, SIGCONT);
  CHECK(until(false).empty());
}

}  // namespace
}  // namespace psd::etcd_faults_test
