#include "server/publish/shared_version_file.h"

#include <csignal>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/checksum/crc32c.h"
#include "common/os/socket.h"
#include "test/support/catch.h"
#include "test/support/random.h"
#include "test/support/temp_dir.h"

namespace psd::shared_version_file_test {
namespace {

using namespace testing;
using std::chrono::milliseconds;

constexpr milliseconds kNow{0};

/// The file of a version whose `count` values are its number.
class Version {
 public:
  explicit Version(uint64_t number, uint64_t count = 1000, uint64_t history = 7) {
    const std::vector<float> values(count, static_cast<float>(number));
    const auto data = std::as_bytes(std::span(values));
    info_ = {number, history, 10 * number, "2026-11-29T12:00:00Z", VersionMoment::round, 0};
    SafetensorsHead head;
    head.addMetadata(versionMetadata(info_, std::vector<uint32_t>{crc32c(data)}));
    head.add("w", "F32", {count}, data.size());
    const std::string text = head.text(400);
    file_.resize(text.size() + data.size());
    std::memcpy(file_.data(), text.data(), text.size());
    std::memcpy(file_.data() + text.size(), data.data(), data.size());
    info_.bytes = file_.size();
  }

  const VersionInfo& info() const { return info_; }
  std::vector<std::byte>& file() { return file_; }
  VersionImage image(const TensorMap* map = nullptr) const {
    const auto image = versionImage(info_, file_, map);
    PSD_REQUIRE_OK(image);
    return *image;
  }

 private:
  VersionInfo info_;
  std::vector<std::byte> file_;
};

std::unique_ptr<SharedVersionFile> openAt(const std::string& path) {
  auto file = SharedVersionFile::open(path);
  PSD_REQUIRE_OK(file);
  return std::move(*file);
}

uint64_t numberIn(const SharedVersionFile& file) {
  const auto active = file.active();
  PSD_REQUIRE_OK(active);
  return *active ? (*active)->info.number : 0;
}

SharedHeader headerOf(const std::string& path) {
  const std::string bytes = readFile(path);
  const auto header = readSharedHeader(std::as_bytes(std::span(bytes)), bytes.size());
  PSD_REQUIRE_OK(header);
  return *header;
}

/// A reader of a slot, as another process is: an open file of its own with a lock.
class Reader {
 public:
  Reader(const std::string& path, uint64_t slot) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct flock lock {};
    lock.l_type = F_RDLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = SharedHeader::kSlotLock + static_cast<int64_t>(slot);
    lock.l_len = 1;
    locked_ = ::fcntl(fd_.get(), F_OFD_SETLK, &lock) == 0;
  }
  bool locked() const { return locked_; }

 private:
  OwnFd fd_;
  bool locked_;
};

TEST_CASE("Shared version file: versions take turns in two slots") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto file = openAt(path);
  CHECK(numberIn(*file) == 0);
  CHECK(headerOf(path).generation == 0);
  for (uint64_t number = 1; number <= 5; number++) {
    Version version(number);
    PSD_REQUIRE_OK(file->write(version.image()));
    CHECK(numberIn(*file) == number);
    const SharedHeader header = headerOf(path);
    CHECK(header.generation == number);
    CHECK(header.active().number == number);
    CHECK(header.active().history == 7);
    const std::string bytes = readFile(path).substr(header.slotAt[number % 2], header.active().bytes);
    CHECK(bytes == std::string(reinterpret_cast<const char*>(version.file().data()), version.file().size()));
  }
}

TEST_CASE("Shared version file: a follower that starts again continues") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  {
    const auto file = openAt(path);
    PSD_REQUIRE_OK(file->write(Version(1).image()));
    PSD_REQUIRE_OK(file->write(Version(2).image()));
  }
  const auto file = openAt(path);
  CHECK(numberIn(*file) == 2);
  PSD_REQUIRE_OK(file->write(Version(3).image()));
  CHECK(headerOf(path).generation == 3);
}

TEST_CASE("Shared version file: a version that is being written is not visible") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto file = openAt(path);
  PSD_REQUIRE_OK(file->write(Version(1).image()));
  VersionImage half = Version(2).image();
  Version second(2);
  half.passTo = [&](const VersionImage::Sink& sink) -> Status {
    PSD_RETURN_IF_ERROR(sink(std::span(second.file()).first(1000)));
    // The moment at which this process may die: a program that opens the file finds the version before.
    CHECK(headerOf(path).active().number == 1);
    const auto found = readSharedVersion(*makePosixEnv(), path);
    PSD_REQUIRE_OK(found);
    CHECK((*found)->info.number == 1);
    CHECK(!Reader(path, 0).locked());
    CHECK(Reader(path, 1).locked());
    return {ErrorCode::io, "cut"};
  };
  CHECK(!file->write(half).ok());
  CHECK(numberIn(*file) == 1);
  second.file()[600] ^= std::byte{1};
  const Status damaged = file->write(second.image());
  CHECK_THAT(damaged.message(), Catch::Matchers::Contains("the checksum of tensor 'w'"));
  CHECK(numberIn(*file) == 1);
  PSD_REQUIRE_OK(file->write(Version(2).image()));
  CHECK(numberIn(*file) == 2);
}

/// The newest generation that the file shows, at least `least`; ends the test if that does not come.
uint64_t awaitGeneration(const std::string& path, uint64_t least) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  const OwnFd fd(::open(path.c_str(), O_RDONLY));
  for (;;) {
    SharedHeader header;
    const bool read = ::pread(fd.get(), &header, sizeof header, 0) == sizeof header;
    if (read && header.generation >= least) return header.generation;
    if (std::chrono::steady_clock::now() > until) FAIL("the generation does not rise");
  }
}

TEST_CASE("Shared version file: a follower that is killed while it writes leaves a whole version") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  constexpr uint64_t kCount = 1 << 19;  // a version takes a millisecond or so
  PSD_REQUIRE_OK(openAt(path)->write(Version(1, kCount).image()));
  Random random(7);
  for (uint64_t round = 0; round < 40; round++) {
    CAPTURE(round);
    const uint64_t before = headerOf(path).generation;
    const pid_t child = ::fork();
    if (child == 0) {
      const auto file = SharedVersionFile::open(path);
      for (uint64_t number = before + 1; file.ok(); number++) {
        if (!(*file)->write(Version(number, kCount).image()).ok()) break;
      }
      ::_exit(1);
    }
    awaitGeneration(path, before + 1 + random.below(2));
    for (uint64_t spins = random.below(40); spins > 0; spins--) awaitGeneration(path, 0);
    ::kill(child, SIGKILL);
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    const uint64_t generation = headerOf(path).generation;
    CHECK(generation > before);
    CHECK(numberIn(*openAt(path)) == generation);  // active() verifies it
  }
}

TEST_CASE("Shared version file: a reader keeps its slot") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto file = openAt(path);
  PSD_REQUIRE_OK(file->write(Version(1).image()));
  {
    const Reader slow(path, 1), alsoSlow(path, 1);
    REQUIRE((slow.locked() && alsoSlow.locked()));
    CHECK(file->awaitReaders(kNow));
    PSD_REQUIRE_OK(file->write(Version(2).image()));
    CHECK(!file->awaitReaders(kNow));
    CHECK(file->idleNumber() == 1);
    const Status refused = file->write(Version(3).image());
    CHECK(refused.error().code == ErrorCode::overloaded);
    CHECK_THAT(refused.message(), Catch::Matchers::Contains("a reader holds version 1"));
    CHECK(numberIn(*file) == 2);
  }
  CHECK(file->awaitReaders(kNow));  // the locks end with their open files, as with a process that dies
  PSD_REQUIRE_OK(file->write(Version(3).image()));
  CHECK(numberIn(*file) == 3);
}

TEST_CASE("Shared version file: versions of another size are in a new file") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto file = openAt(path);
  const OwnFd empty(::open(path.c_str(), O_RDONLY));
  PSD_REQUIRE_OK(file->write(Version(1).image()));
  const OwnFd old(::open(path.c_str(), O_RDONLY));
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  PSD_REQUIRE_OK(file->write(Version(2, 100'000).image()));
  CHECK(headerOf(path).active().number == 2);
  CHECK(headerOf(path).generation == 2);
  CHECK(headerOf(path).replaced == 0);
  for (const OwnFd* before : {&empty, &old}) {
    SharedHeader header;
    REQUIRE(::pread(before->get(), &header, sizeof header, 0) == sizeof header);
    CHECK(header.replaced == 1);
    CHECK(header.generation == (before == &old ? 1 : 0));
  }
  struct stat info {};
  REQUIRE(::stat(path.c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0640);
  CHECK(info.st_nlink == 1);
  CHECK(!SharedVersionFile::open(path).ok());  // still locked
}

TEST_CASE("Shared version file: one follower") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  auto file = openAt(path);
  const auto second = SharedVersionFile::open(path);
  REQUIRE(!second.ok());
  CHECK(second.error().code == ErrorCode::unavailable);
  CHECK(second.message() == "'" + path + "' is in use by another psd follow");
  file = nullptr;
  openAt(path);
}

TEST_CASE("Shared version file: a file that was removed is made again, one of another is left alone") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto file = openAt(path);
  PSD_REQUIRE_OK(file->write(Version(1).image()));
  REQUIRE(::unlink(path.c_str()) == 0);
  PSD_REQUIRE_OK(file->write(Version(2).image()));
  CHECK(headerOf(path).active().number == 2);
  REQUIRE(::unlink(path.c_str()) == 0);
  writeFile(path, "mine");
  CHECK_THAT(file->write(Version(3).image()).message(),
             Catch::Matchers::Contains("another program has replaced"));
  CHECK(readFile(path) == "mine");
}

TEST_CASE("Shared version file: refuses other files") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  const auto says = [&](const std::string& text) {
    const auto file = SharedVersionFile::open(path);
    REQUIRE(!file.ok());
    CHECK(file.error().code == ErrorCode::invalidArgument);
    CHECK_THAT(file.message(), Catch::Matchers::Contains(text) && Catch::Matchers::Contains(path));
  };
  writeFile(path, "");
  says("too short");
  writeFile(path, std::string(100'000, 'x'));
  says("begins differently");
  ::unlink(path.c_str());
  openAt(path);
  const std::string good = readFile(path);
  writeFile(path, good + "x");
  says("do not match its size");
  std::string later = good;
  later[8] = 2;
  writeFile(path, later);
  says("another version of psd");
  ::unlink(path.c_str());
  REQUIRE(::symlink("/dev/null", path.c_str()) == 0);
  says("symbolic link");
  ::unlink(path.c_str());
  REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  says("directory");
  const auto nowhere = SharedVersionFile::open(dir.file("none/shared"));
  REQUIRE(!nowhere.ok());
  CHECK_THAT(nowhere.message(), Catch::Matchers::Contains("No such file"));
}

TEST_CASE("Shared version file: a damaged active version is reported, and replaced") {
  const TempDir dir;
  const std::string path = dir.file("shared");
  {
    const auto file = openAt(path);
    PSD_REQUIRE_OK(file->write(Version(1).image()));
  }
  const OwnFd fd(::open(path.c_str(), O_RDWR));
  REQUIRE(::pwrite(fd.get(), "x", 1, static_cast<off_t>(headerOf(path).slotAt[1] + 700)) == 1);
  const auto file = openAt(path);
  const auto active = file->active();
  REQUIRE(!active.ok());
  CHECK_THAT(active.message(), Catch::Matchers::Contains("version 1 is damaged"));
  PSD_REQUIRE_OK(file->write(Version(2).image()));
  CHECK(numberIn(*file) == 2);
}

TEST_CASE("Version image: a mapped file is a version of its own tensors") {
  const auto map =
      TensorMap::parse(R"({"tensors": {"half": {"from": "w", "begin": 500}, "twice": ["w", "w"]}})", "map");
  PSD_REQUIRE_OK(map);
  std::vector<std::string> heads;
  for (const uint64_t number : {9, 123456}) {
    const Version version(number);
    const VersionImage image = version.image(&*map);
    std::vector<std::byte> file;
    PSD_REQUIRE_OK(image.passTo([&](std::span<const std::byte> bytes) {
      file.insert(file.end(), bytes.begin(), bytes.end());
      return Status();
    }));
    CHECK(file.size() == image.info.bytes);
    const auto header = verifyVersion(file, number, 7);
    PSD_REQUIRE_OK(header);
    CHECK(header->map == map->checksum());
    CHECK(header->info.step == 10 * number);
    CHECK(header->info.created == "2026-11-29T12:00:00Z");
    CHECK(header->info.moment == VersionMoment::round);
    REQUIRE(header->tensors.size() == 2);
    CHECK(header->tensors[0].toString() == "half F32[500]");
    CHECK(header->tensors[1].toString() == "twice F32[2000]");
    heads.push_back(std::to_string(header->dataBegin));
  }
  CHECK(heads[0] == heads[1]);  // tensors lie at the same places
}

}  // namespace
}  // namespace psd::shared_version_file_test
