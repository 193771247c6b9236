#include "server/move/move_mark.h"

#include <span>
#include <string>

#include "common/os/text_file.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"

namespace psd::move_mark_test {
namespace {

using namespace testing;

TEST_CASE("the mark of a move is read as written, and is absent if there is none") {
  MemoryEnv env;
  const DaemonAddresses there{{"tcp://a:1", "unix:///a"}, {"tcp://b:1"}};
  PSD_REQUIRE_OK(env.createFolder("saved"));
  CHECK_FALSE(readMoveMark(env, "saved", kMovedName).value());
  PSD_REQUIRE_OK(writeMoveMark(env, "saved", kMovedName, {0xfeed, there}));
  const auto mark = readMoveMark(env, "saved", kMovedName).value();
  REQUIRE(mark);
  CHECK(mark->move == 0xfeed);
  CHECK(mark->to == there);
  CHECK_FALSE(readMoveMark(env, "saved", kArrivingName).value());
  PSD_REQUIRE_OK(removeMoveMark(env, "saved", kMovedName));
  PSD_REQUIRE_OK(removeMoveMark(env, "saved", kMovedName));
  CHECK_FALSE(readMoveMark(env, "saved", kMovedName).value());
}

TEST_CASE("a damaged mark of a move is reported, with the remedy") {
  MemoryEnv env;
  PSD_REQUIRE_OK(writeMoveMark(env, "saved", kMovedName, {7, {{"tcp://a:1"}}}));
  const std::string path = "saved/" + std::string(kMovedName);
  std::string text = readText(env, path, 10'000, "a mark").value();
  text[text.find("tcp://a")] = 'u';
  PSD_REQUIRE_OK(writeTextAtomically(env, path, text));
  const auto mark = readMoveMark(env, "saved", kMovedName);
  REQUIRE_FALSE(mark.ok());
  CHECK(mark.message().find("'saved/moved.json' is damaged") == 0);
  CHECK(mark.message().find("remove the file") != std::string::npos);
}

}  // namespace
}  // namespace psd::move_mark_test
