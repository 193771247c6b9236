#include "common/os/private_file.h"

#include <cstdlib>
#include <filesystem>

#include <sys/stat.h>

#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd::private_file_test {
namespace {

Status readIt(const std::string& path) {
  return readPrivateText(path, 1024, "a test's file", /*orPipe=*/false).status();
}

std::string makeFile(const std::string& path, mode_t mode) {
  testing::writeFile(path, "secret");
  REQUIRE(chmod(path.c_str(), mode) == 0);
  return path;
}

/// CREDENTIALS_DIRECTORY for the life of this object.
struct Credentials {
  explicit Credentials(const std::string& folder) { setenv("CREDENTIALS_DIRECTORY", folder.c_str(), 1); }
  ~Credentials() { unsetenv("CREDENTIALS_DIRECTORY"); }
};

}  // namespace

TEST_CASE("the group may read secret files in CREDENTIALS_DIRECTORY, and nowhere else") {
  const testing::TempDir dir;
  const std::string folder = dir.file("credentials");
  std::filesystem::create_directories(folder + "/below");
  const std::string inside = makeFile(folder + "/token", 0440), outside = makeFile(dir.file("token"), 0440);
  const std::string below = makeFile(folder + "/below/token", 0440);
  CHECK_FALSE(readIt(inside).ok());
  for (const std::string& given : {folder, folder + "/", folder + "/below/.."}) {
    const Credentials credentials(given);
    CHECK(readIt(inside).ok());
    CHECK(readIt(folder + "/below/../token").ok());
    for (const std::string& other : {outside, folder + "/../token", below}) CHECK_FALSE(readIt(other).ok());
    CHECK_FALSE(readIt(makeFile(folder + "/open", 0444)).ok());
  }
  for (const char* const wrong : {"", ".", "/no/such/folder"}) {
    const Credentials credentials(wrong);
    CHECK_FALSE(readIt(inside).ok());
  }
}

TEST_CASE("an edit of a secret file keeps its mode and a link to it, and creates it if it is missing") {
  const testing::TempDir dir;
  const std::string path = makeFile(dir.file("tokens"), 0600), link = dir.file("link");
  std::filesystem::create_symlink(path, link);
  const auto edit = [](const std::string& file) {
    return editPrivateText(file, 1024, "a test's file", IfMissing::create, [](std::string& text) {
      text += "+";
      return Status();
    });
  };
  PSD_REQUIRE_OK(edit(link));
  PSD_REQUIRE_OK(edit(dir.file("new")));
  CHECK(testing::readFile(path) == "secret+");
  CHECK(testing::readFile(dir.file("new")) == "+");
  CHECK(std::filesystem::is_symlink(link));
  PSD_REQUIRE_OK(readIt(path));
  PSD_REQUIRE_OK(readIt(dir.file("new")));
  const Status refused = editPrivateText(path, 1024, "a test's file", IfMissing::fail, [](std::string& text) {
    text = "lost";
    return Status(ErrorCode::invalidArgument, "no");
  });
  CHECK(refused.message() == "no");
  const std::string none = dir.file("none");
  const Status missing =
      editPrivateText(none, 1024, "a test's file", IfMissing::fail, [](std::string&) { return Status(); });
  CHECK(missing.message() == none + ": cannot be opened for writing: No such file or directory");
  CHECK_FALSE(std::filesystem::exists(none));
  CHECK(testing::readFile(path) == "secret+");
}

}  // namespace psd::private_file_test
