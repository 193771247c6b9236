#include "common/text/text.h"

#include "test/support/catch.h"

namespace psd {
namespace {

TEST_CASE("texts are joined with the separator between them, empty ones too") {
  CHECK(joined(std::vector<std::string>{}, ", ").empty());
  CHECK(joined(std::vector<std::string_view>{"one"}, ", ") == "one");
  CHECK(joined(std::vector<std::string>{"", "two", ""}, ", ") == ", two, ");
  CHECK(joined(std::vector<int>{1, 2, 3}, "; ", [](int each) { return std::to_string(each); }) == "1; 2; 3");
}

TEST_CASE("nearest finds the candidate that was meant, or none") {
  std::vector<std::string_view> keys = {"type", "lr", "momentum", "weight_decay", "sgd", "rmsprop"};
  CHECK(nearest("tpye", keys) == "type");
  CHECK(nearest("Type", keys) == "type");
  CHECK(nearest("momentm", keys) == "momentum");
  CHECK(nearest("weightDecay", keys) == "weight_decay");
  CHECK(nearest("sdg", keys) == "sgd");
  CHECK(nearest("learning_rate", keys).empty());
  CHECK(nearest("xy", keys).empty());
  CHECK(nearest("", keys).empty());
  CHECK(nearest("type", {}).empty());
}

}  // namespace
}  // namespace psd
