#include "common/text/named_options.h"

#include "test/support/catch.h"

namespace psd {
namespace {

/// The error of finish() for a list with one option of each kind.
std::string problemOf(std::string_view text) {
  NamedOptions options("thing", "box", text);
  options.number("weight", 0.5, 0, 1);
  options.count("sides", 6, 1, 8);
  options.word("colour", {"red", "blue"});
  return options.finish().ok() ? "" : options.finish().message();
}

TEST_CASE("options have their defaults, or what is given in any order") {
  NamedOptions options("thing", "box", "colour=blue,weight=0.25");
  CHECK(options.number("weight", 0.5, 0, 1) == 0.25);
  CHECK(options.count("sides", 6, 1, 8) == 6);
  CHECK(options.word("colour", {"red", "blue"}) == "blue");
  CHECK(options.finish().ok());
  CHECK(options.spec() == "box:weight=0.25,sides=6,colour=blue");
}

TEST_CASE("every wrong option gets one line that names the option and the valid values") {
  CHECK(problemOf("sides=8,colour=red,weight=1").empty());
  CHECK(problemOf("weight=2") == "thing 'box': weight must be a number from 0 to 1, not '2'");
  CHECK(problemOf("weight=nan") == "thing 'box': weight must be a number from 0 to 1, not 'nan'");
  CHECK(problemOf("sides=9") == "thing 'box': sides must be a whole number from 1 to 8, not '9'");
  CHECK(problemOf("sides=2.5") == "thing 'box': sides must be a whole number from 1 to 8, not '2.5'");
  CHECK(problemOf("sides=-1") == "thing 'box': sides must be a whole number from 1 to 8, not '-1'");
  CHECK(problemOf("sides=") == "thing 'box': sides must be a whole number from 1 to 8, not ''");
  CHECK(problemOf("colour=green") == "thing 'box': colour must be red or blue, not 'green'");
  CHECK(problemOf("size=1") == "thing 'box': 'size' is not an option; expected weight, sides, colour");
  CHECK(problemOf("sides=1,sides=2") == "thing 'box': sides is given twice");
  CHECK(problemOf("sides") == "thing 'box': 'sides' is not an option; expected NAME=VALUE");
  CHECK(NamedOptions("thing", "box", "a=1").finish().message() ==
        "thing 'box': 'a' is not an option; there are none");
}

}  // namespace
}  // namespace psd
