#include "common/os/env.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <sys/stat.h>
#include <unistd.h>

#include "common/text/text.h"
#include "test/support/catch.h"
#include "test/support/memory_env.h"
#include "test/support/temp_dir.h"

namespace psd::os_env_test {
namespace {

using testing::kSurvivals;
using testing::MemoryEnv;
using testing::readFile;
using testing::Survival;
using testing::TempDir;
using testing::writeFile;

std::span<const std::byte> bytesOf(const std::string& text) { return std::as_bytes(std::span(text)); }

Status writeText(WritableFile& file, const std::string& text) { return file.append(bytesOf(text)); }

std::vector<std::string> filesIn(const TempDir& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename().string());
  }
  return names;
}

TEST_CASE("appended bytes can be read") {
  const TempDir folder;
  const auto env = makePosixEnv();
  auto out = env->create(folder.file("data"));
  PSD_REQUIRE_OK(out);
  PSD_REQUIRE_OK(writeText(**out, "hello "));
  PSD_REQUIRE_OK(writeText(**out, ""));
  PSD_REQUIRE_OK(writeText(**out, "world"));
  PSD_REQUIRE_OK((*out)->sync());
  PSD_REQUIRE_OK((*out)->close());
  auto in = env->open(folder.file("data"));
  PSD_REQUIRE_OK(in);
  CHECK((*in)->size() == 11);
  std::string part(5, '\0');
  PSD_REQUIRE_OK((*in)->read(6, std::as_writable_bytes(std::span(part))));
  CHECK(part == "world");
}

TEST_CASE("creating a file truncates it") {
  const TempDir folder;
  writeFile(folder.file("data"), "old");
  const auto env = makePosixEnv();
  PSD_REQUIRE_OK(env->create(folder.file("data")));
  CHECK(readFile(folder.file("data")).empty());
}

TEST_CASE("reading past the end is an error that names the file") {
  const TempDir folder;
  writeFile(folder.file("data"), "12345");
  auto file = makePosixEnv()->open(folder.file("data"));
  PSD_REQUIRE_OK(file);
  std::string part(4, '\0');
  Status status = (*file)->read(2, std::as_writable_bytes(std::span(part)));
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ErrorCode::io);
  CHECK(status.message() == "'" + folder.file("data") + "': ends before byte 6");
}

TEST_CASE("errors name the path, the operation and the system's reason") {
  const TempDir folder;
  const auto env = makePosixEnv();
  const std::string missing = folder.file("missing"), below = folder.file("missing/file");
  const std::string nothing = std::string(": ") + std::strerror(ENOENT);
  CHECK(env->open(missing).message() == "'" + missing + "': cannot open" + nothing);
  CHECK(env->create(below).message() == "'" + below + "': cannot create" + nothing);
  CHECK(env->remove(missing).message() == "'" + missing + "': cannot remove" + nothing);
  CHECK(env->rename(missing, below).message() == "'" + below + "': cannot rename to" + nothing);
  CHECK(env->syncFolder(missing).message() == "'" + missing + "': cannot open" + nothing);
  CHECK(env->open(folder.path()).message() ==
        "'" + folder.path() + "': cannot open: " + std::strerror(EISDIR));
}

TEST_CASE("an atomic write replaces the content and leaves no other file") {
  const TempDir folder;
  const auto env = makePosixEnv();
  for (const std::string text : {"first", "second, longer", ""}) {
    PSD_REQUIRE_OK(writeFileAtomically(*env, folder.file("data"),
                                       [&](WritableFile& file) { return writeText(file, text); }));
    CHECK(readFile(folder.file("data")) == text);
    CHECK(filesIn(folder) == std::vector<std::string>{"data"});
  }
}

mode_t modeOf(const std::string& path) {
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  return info.st_mode & 07777;
}

TEST_CASE("a replaced file keeps its permissions, from the first byte of the new content on") {
  const TempDir folder;
  const auto env = makePosixEnv();
  const std::string path = folder.file("data");
  writeFile(path, "old");
  writeFile(path + ".tmp." + std::to_string(::getpid()), "left behind, for all to read");
  for (const mode_t mode : {0600u, 0664u, 0640u, 0604u, 0400u}) {
    REQUIRE(::chmod(path.c_str(), mode) == 0);
    PSD_REQUIRE_OK(writeFileAtomically(*env, path, [&](WritableFile& file) {
      CHECK(modeOf(path + ".tmp." + std::to_string(::getpid())) == mode);
      return writeText(file, "new");
    }));
    CHECK(modeOf(path) == mode);
  }
  if (::geteuid() != 0) return;
  REQUIRE(::chown(path.c_str(), 12345, 54321) == 0);
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  PSD_REQUIRE_OK(
      writeFileAtomically(*env, path, [&](WritableFile& file) { return writeText(file, "newer"); }));
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK(info.st_uid == 12345);
  CHECK(info.st_gid == 54321);
  CHECK((info.st_mode & 07777) == 0640);
}

TEST_CASE("a new file has the permissions that the umask leaves") {
  const TempDir folder;
  const auto env = makePosixEnv();
  for (const mode_t mask : {0002u, 0022u, 0077u}) {
    const mode_t before = ::umask(mask);
    const std::string path = folder.file("data" + std::to_string(mask));
    const Status written = writeFileAtomically(*env, path, [](WritableFile&) { return Status(); });
    const Status plain = env->create(path + "2").status();
    ::umask(before);
    PSD_REQUIRE_OK(written);
    PSD_REQUIRE_OK(plain);
    CHECK(modeOf(path) == (0666u & ~mask));
    CHECK(modeOf(path + "2") == (0666u & ~mask));
  }
}

TEST_CASE("standard output is not treated as a file") {
  const auto env = makePosixEnv();
  const std::string why = "'-': only files are written, not standard output; './-' names a file";
  CHECK(writeFileAtomically(*env, "-", [](WritableFile&) { return Status(); }).message() == why);
  CHECK(checkWritable(*env, "-").message() == why);
}

TEST_CASE("the old content stays readable during an atomic write") {
  const TempDir folder;
  writeFile(folder.file("data"), "old");
  const auto env = makePosixEnv();
  PSD_REQUIRE_OK(writeFileAtomically(*env, folder.file("data"), [&](WritableFile& file) {
    Status status = writeText(file, "new");
    CHECK(readFile(folder.file("data")) == "old");
    return status;
  }));
  CHECK(readFile(folder.file("data")) == "new");
}

TEST_CASE("an atomic write whose function fails keeps the old content") {
  const TempDir folder;
  writeFile(folder.file("data"), "old");
  Status status = writeFileAtomically(*makePosixEnv(), folder.file("data"), [](WritableFile& file) -> Status {
    PSD_RETURN_IF_ERROR(writeText(file, "half of the new"));
    return {ErrorCode::internal, "no more values"};
  });
  REQUIRE_FALSE(status.ok());
  CHECK(status.message() == "no more values");
  CHECK(readFile(folder.file("data")) == "old");
  CHECK(filesIn(folder) == std::vector<std::string>{"data"});
}

TEST_CASE("an atomic write that cannot start names the requested file") {
  const TempDir folder;
  const std::string path = folder.file("absent/data");
  const auto env = makePosixEnv();
  const Status status = writeFileAtomically(*env, path, [](WritableFile&) { return Status(); });
  REQUIRE_FALSE(status.ok());
  CHECK(status.message() == "'" + path + "': cannot create: No such file or directory");
}

TEST_CASE("an atomic write does not replace a pipe, device or link") {
  const TempDir folder;
  const auto env = makePosixEnv();
  writeFile(folder.file("target"), "old");
  REQUIRE(::symlink(folder.file("target").c_str(), folder.file("link").c_str()) == 0);
  REQUIRE(::mkfifo(folder.file("pipe").c_str(), 0600) == 0);
  const std::pair<std::string, std::string> expected[] = {
      {folder.file("link"), ": is a symbolic link; name the file itself"},
      {folder.file("pipe"), ": is a device or a pipe, not a file to write"},
      {"/dev/null", ": is a device or a pipe, not a file to write"}};
  for (const auto& [path, why] : expected) {
    const Status status = writeFileAtomically(*env, path, [](WritableFile&) { return Status(); });
    REQUIRE_FALSE(status.ok());
    CHECK(status.message() == "'" + path + "'" + why);
    CHECK(checkWritable(*env, path).message() == status.message());
  }
  CHECK(readFile(folder.file("target")) == "old");
  CHECK(filesIn(folder).size() == 3);
}

TEST_CASE("whether a file can be written is checked without writing it") {
  const TempDir folder;
  const auto env = makePosixEnv();
  writeFile(folder.file("data"), "old");
  PSD_REQUIRE_OK(checkWritable(*env, folder.file("data")));
  PSD_REQUIRE_OK(checkWritable(*env, folder.file("new")));
  CHECK(readFile(folder.file("data")) == "old");
  CHECK(filesIn(folder) == std::vector<std::string>{"data"});
  const Status absent = checkWritable(*env, folder.file("absent/data"));
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.message().find("there is no folder '" + folder.file("absent") + "'") != std::string::npos);
  CHECK_FALSE(checkWritable(*env, folder.path()).ok());
}

TEST_CASE("an atomic write that fails on the disk keeps the old content") {
  const std::string failing = GENERATE("create", "append", "sync", "rename");
  INFO(failing << " fails");
  MemoryEnv env;
  env.put("/data", "old");
  env.fail({failing}, "the disk is on fire");
  Status status =
      writeFileAtomically(env, "/data", [](WritableFile& file) { return writeText(file, "new"); });
  REQUIRE_FALSE(status.ok());
  CHECK(status.message().ends_with("cannot " + failing + ": the disk is on fire"));
  CHECK(env.bytes("/data") == "old");
  CHECK(env.list("/").value() == std::vector<std::string>{"data"});
}

TEST_CASE("an atomic write that may not survive a crash is an error") {
  MemoryEnv env;
  env.put("/data", "old");
  env.fail({"syncFolder"}, "the disk is on fire");
  REQUIRE_FALSE(
      writeFileAtomically(env, "/data", [](WritableFile& file) { return writeText(file, "new"); }).ok());
  CHECK(env.bytes("/data") == "new");  // but complete
  CHECK(env.list("/").value() == std::vector<std::string>{"data"});
}

TEST_CASE("a crash anywhere in an atomic write leaves the old content or the new") {
  const Survival survival = GENERATE(from_range(std::begin(kSurvivals), std::end(kSurvivals)));
  const unsigned appended = GENERATE(0u, 8u, 16u);
  std::set<std::string> found;
  bool done = false;
  for (uint64_t point = 0; !done; point++) {
    MemoryEnv env;
    env.put("/data", "old content");
    env.crashAt(point, appended);
    done = writeFileAtomically(env, "/data", [](WritableFile& file) { return writeText(file, "new"); }).ok();
    env.restart(survival);
    INFO("operation " << point << ", survival " << static_cast<int>(survival));
    if (done) REQUIRE(env.bytes("/data") == "new");
    REQUIRE((env.bytes("/data") == "old content" || env.bytes("/data") == "new"));
    found.insert(env.bytes("/data"));
  }
  CHECK(found.size() == 2);
}

TEST_CASE("folders are created with their parents, listed in order, and removed when empty") {
  const TempDir folder;
  const auto env = makePosixEnv();
  const std::string inner = folder.file("a/b");
  PSD_REQUIRE_OK(env->createFolder(inner));
  PSD_REQUIRE_OK(env->createFolder(inner));
  for (const std::string name : {"z", "x", "y"}) writeFile(inner + "/" + name, "");
  CHECK(env->list(inner).value() == std::vector<std::string>{"x", "y", "z"});
  CHECK(env->exists(inner).value());
  CHECK(env->removeFolder(inner).message() == "'" + inner + "': cannot remove: " + std::strerror(ENOTEMPTY));
  for (const std::string name : {"x", "y", "z"}) PSD_REQUIRE_OK(env->remove(inner + "/" + name));
  PSD_REQUIRE_OK(env->removeFolder(inner));
  CHECK_FALSE(env->exists(inner).value());
  CHECK(env->list(inner).message() == "'" + inner + "': cannot list: " + std::strerror(ENOENT));
}

TEST_CASE("a failed lookup is not reported as missing") {
  const TempDir folder;
  const auto env = makePosixEnv();
  writeFile(folder.file("data"), "");
  CHECK(env->exists(folder.file("data")).value());
  CHECK_FALSE(env->exists(folder.file("missing")).value());
  CHECK_FALSE(env->exists(folder.file("data/below")).value());
  const std::string tooLong = folder.file(std::string(5000, 'x'));
  CHECK(env->exists(tooLong).message() ==
        quotedPath(tooLong) + ": cannot stat: " + std::strerror(ENAMETOOLONG));
}

TEST_CASE("a file is truncated at the given size") {
  const TempDir folder;
  writeFile(folder.file("data"), "12345");
  PSD_REQUIRE_OK(makePosixEnv()->truncate(folder.file("data"), 2));
  CHECK(readFile(folder.file("data")) == "12");
}

TEST_CASE("a lock excludes others until it is released") {
  const TempDir folder;
  const auto env = makePosixEnv();
  {
    auto first = env->lock(folder.file("lock"));
    PSD_REQUIRE_OK(first);
    auto second = env->lock(folder.file("lock"));
    REQUIRE_FALSE(second.ok());
    CHECK(second.error().code == ErrorCode::unavailable);
  }
  PSD_REQUIRE_OK(env->lock(folder.file("lock")));
}

TEST_CASE("a lock excludes others even if its file is removed, and detects that") {
  const TempDir folder;
  const auto env = makePosixEnv();
  auto first = env->lock(folder.file("lock"));
  PSD_REQUIRE_OK(first);
  CHECK((*first)->inPlace());
  REQUIRE(std::filesystem::remove(folder.file("lock")));
  CHECK_FALSE((*first)->inPlace());
  const auto second = env->lock(folder.file("lock"));
  REQUIRE_FALSE(second.ok());
  CHECK(second.error().code == ErrorCode::unavailable);
  CHECK_FALSE((*first)->inPlace());  // another file has replaced the one that it locked
  first->reset();
  PSD_REQUIRE_OK(env->lock(folder.file("lock")));
}

TEST_CASE("an atomic write to a name without a folder goes to the current folder") {
  const TempDir folder;
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path());
  Status status = writeFileAtomically(*makePosixEnv(), "data",
                                      [](WritableFile& file) { return writeText(file, "text"); });
  std::filesystem::current_path(before);
  PSD_REQUIRE_OK(status);
  CHECK(readFile(folder.file("data")) == "text");
}

}  // namespace
}  // namespace psd::os_env_test
