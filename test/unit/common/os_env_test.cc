#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "common/os/env.h"
#include "test/support/catch.h"
#include "test/support/temp_dir.h"

namespace psd {
namespace {

using testing::readFile;
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

/// The system's files, with one step that fails. Owned by one thread.
class FaultyEnv final : public Env {
 public:
  explicit FaultyEnv(std::string failing) : failing_(std::move(failing)) {}

  Result<std::unique_ptr<WritableFile>> create(const std::string& path) override {
    if (failing_ == "create") return fault();
    PSD_ASSIGN_OR_RETURN(auto file, real_->create(path));
    return std::unique_ptr<WritableFile>(new File(std::move(file), failing_));
  }
  Result<std::unique_ptr<ReadableFile>> open(const std::string& path) override { return real_->open(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return failing_ == "rename" ? fault() : real_->rename(from, to);
  }
  Status remove(const std::string& path) override { return real_->remove(path); }
  Status syncFolder(const std::string& folder) override {
    return failing_ == "syncFolder" ? fault() : real_->syncFolder(folder);
  }

 private:
  static Error fault() { return {ErrorCode::io, "the disk is on fire"}; }

  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> real, std::string failing)
        : real_(std::move(real)), failing_(std::move(failing)) {}
    Status append(std::span<const std::byte> bytes) override {
      return failing_ == "append" ? fault() : real_->append(bytes);
    }
    Status sync() override { return failing_ == "sync" ? fault() : real_->sync(); }
    Status close() override { return failing_ == "close" ? fault() : real_->close(); }

   private:
    std::unique_ptr<WritableFile> real_;
    std::string failing_;
  };

  std::unique_ptr<Env> real_ = makePosixEnv();
  std::string failing_;
};

TEST_CASE("what is appended is what is read") {
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

TEST_CASE("creating a file empties what was there") {
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

TEST_CASE("errors name the path, the deed and the system's reason") {
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

TEST_CASE("an atomic write replaces the content and leaves nothing beside it") {
  const TempDir folder;
  const auto env = makePosixEnv();
  for (const std::string text : {"first", "second, longer", ""}) {
    PSD_REQUIRE_OK(writeFileAtomically(*env, folder.file("data"),
                                       [&](WritableFile& file) { return writeText(file, text); }));
    CHECK(readFile(folder.file("data")) == text);
    CHECK(filesIn(folder) == std::vector<std::string>{"data"});
  }
}

TEST_CASE("while an atomic write goes on, the old content is there") {
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

TEST_CASE("an atomic write that the disk fails keeps the old content") {
  const std::string failing = GENERATE("create", "append", "sync", "close", "rename");
  INFO(failing << " fails");
  const TempDir folder;
  writeFile(folder.file("data"), "old");
  FaultyEnv env(failing);
  Status status = writeFileAtomically(env, folder.file("data"),
                                      [](WritableFile& file) { return writeText(file, "new"); });
  REQUIRE_FALSE(status.ok());
  CHECK(status.message() == "the disk is on fire");
  CHECK(readFile(folder.file("data")) == "old");
  CHECK(filesIn(folder) == std::vector<std::string>{"data"});
}

TEST_CASE("an atomic write that is not known to survive a crash is an error") {
  const TempDir folder;
  writeFile(folder.file("data"), "old");
  FaultyEnv env("syncFolder");
  REQUIRE_FALSE(writeFileAtomically(env, folder.file("data"), [](WritableFile& file) {
                  return writeText(file, "new");
                }).ok());
  CHECK(readFile(folder.file("data")) == "new");  // whole, though
  CHECK(filesIn(folder) == std::vector<std::string>{"data"});
}

TEST_CASE("an atomic write to a name without a folder lands in the current one") {
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
}  // namespace psd
