#include "server/store/buffers.h"

#include <string>
#include <vector>

#include "server/checkpoint/durability.h"
#include "server/checkpoint/replay.h"
#include "test/support/catch.h"
#include "test/support/event_loop.h"
#include "test/support/memory_env.h"
#include "test/unit/server/checkpoint/checkpoint_store.h"

namespace psd::buffers_test {
namespace {

using namespace testing;

const std::string kSgd = R"({"type": "sgd", "lr": 0.5})";

/// One buffer of this dtype-free content.
std::shared_ptr<const BufferSet> bufferOf(const std::string& name, const std::string& content) {
  const auto* const begin = reinterpret_cast<const std::byte*>(content.data());
  const auto set =
      BufferSet::make({{name, "U8", {content.size()}, 0, content.size()}}, {begin, content.size()});
  PSD_REQUIRE_OK(set);
  return *set;
}

/// "NAME=CONTENT" of the only buffer; empty: there is none.
std::string bufferIn(const ParameterStore& store) {
  const auto set = store.buffers().get().set;
  if (!set) return "";
  REQUIRE(set->entries().size() == 1);
  const auto values = set->values();
  return set->entries()[0].name + "=" +
         std::string(reinterpret_cast<const char*>(values.data()), values.size());
}

DurabilityConfig configOf(DurabilityConfig::Type type) {
  DurabilityConfig config;
  config.type = type;
  config.path = "/data";
  config.everySeconds = 0;
  return config;
}

/// A store that is saved, and its durability. A value type.
struct Saved {
  std::unique_ptr<Durability> durability;
  std::shared_ptr<ParameterStore> store = makeStore(2, kSgd);
};

/// Starts as a daemon does, from what the folder has.
Saved start(MemoryEnv& env, DurabilityConfig::Type type) {
  Saved saved;
  auto opened = Durability::open(env, configOf(type));
  PSD_REQUIRE_OK(opened);
  saved.durability = std::move(*opened);
  auto found = saved.durability->find();
  PSD_REQUIRE_OK(found);
  if (*found) PSD_REQUIRE_OK(saved.durability->restore(**found, *saved.store));
  CheckpointSource source;
  source.store = saved.store;
  source.groups = [] { return std::vector<CheckpointSource::Group>{{"locked"}}; };
  PSD_REQUIRE_OK(saved.durability->begin(std::move(source)));
  return saved;
}

TEST_CASE("buffers: a checkpoint has them, and a daemon's end saves them without an update") {
  MemoryEnv env;
  {
    Saved saved = start(env, DurabilityConfig::Type::checkpoint);
    saved.store->buffers().set(bufferOf("seen", "one"));
    PSD_REQUIRE_OK(saved.durability->checkpointNow());
    saved.store->buffers().set(bufferOf("mean", "two"));
  }
  {
    Saved saved = start(env, DurabilityConfig::Type::checkpoint);
    CHECK(bufferIn(*saved.store) == "seen=one");  // the other ones were not saved yet
    PSD_REQUIRE_OK(saved.durability->finish());
  }
  {
    Saved saved = start(env, DurabilityConfig::Type::checkpoint);
    saved.store->buffers().set(bufferOf("mean", "two"));
    PSD_REQUIRE_OK(saved.durability->finish());
  }
  Saved saved = start(env, DurabilityConfig::Type::checkpoint);
  CHECK(bufferIn(*saved.store) == "mean=two");
  const auto checkpoint = newestCheckpoint(env, "/data");
  PSD_REQUIRE_OK(checkpoint);
  PSD_REQUIRE_OK(exportCheckpoint(env, *checkpoint->checkpoint, "/exported"));
  const auto reader = SafetensorsReader::open(env, "/exported");
  PSD_REQUIRE_OK(reader);
  CHECK(reader->buffers().size() == 1);
  const auto started = makeStore(1, kSgd);
  PSD_REQUIRE_OK(loadParameters(*reader, *started));
  CHECK(bufferIn(*started) == "mean=two");
}

TEST_CASE("buffers: what was answered is in the log") {
  TestLoop io;
  MemoryEnv env;
  {
    Saved saved = start(env, DurabilityConfig::Type::log);
    io.wait(saved.store->buffers().replace(bufferOf("seen", "one")));
    const uint64_t number = saved.store->buffers().get().number;
    io.wait(saved.store->buffers().replace(bufferOf("seen", "one")));  // nothing changes
    CHECK(saved.store->buffers().get().number == number);
    update(*saved.store, 0, 1.f);
    io.wait(saved.store->buffers().replace(bufferOf("seen", "two, longer than the first")));
  }
  Saved saved = start(env, DurabilityConfig::Type::log);
  CHECK(bufferIn(*saved.store) == "seen=two, longer than the first");
}

TEST_CASE("buffers: a damaged file damages the checkpoint") {
  MemoryEnv env;
  Saved saved = start(env, DurabilityConfig::Type::checkpoint);
  saved.store->buffers().set(bufferOf("seen", "one"));
  const auto path = saved.durability->checkpointNow();
  PSD_REQUIRE_OK(path);
  auto file = env.create(*path + "/buffers.safetensors");
  PSD_REQUIRE_OK(file);
  PSD_REQUIRE_OK((*file)->close());
  const auto opened = openCheckpoint(env, *path);
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.message().find("buffers.safetensors' is damaged") != std::string::npos);
}

}  // namespace
}  // namespace psd::buffers_test
