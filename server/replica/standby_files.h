#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/os/env.h"
#include "server/checkpoint/file_change.h"

namespace psd {

/// A standby's copy of a folder of its primary, such as that of the published versions: first the files that
/// come with the image, then each change. Used by one thread at a time. Every method may block.
class StandbyFiles {
 public:
  /// Replaces the contents of `folder` in `env` by those of the folder `name` of the image.
  static Result<std::unique_ptr<StandbyFiles>> make(std::shared_ptr<Env> env, std::string folder, Env& image,
                                                    const std::string& name);
  ~StandbyFiles();

  /// Repeats a change; once it returns, files that are committed are durable. Bytes of a file whose beginning
  /// came before the image are skipped: the image has the file. ErrorCode::invalidArgument: the primary's
  /// changes do not fit together.
  Status apply(const FileChange& change);

 private:
  /// A file that is being received.
  struct Unfinished {
    std::unique_ptr<WritableFile> file;
    uint64_t bytes = 0;
  };

  StandbyFiles(std::shared_ptr<Env> env, std::string folder)
      : env_(std::move(env)), folder_(std::move(folder)) {}
  Status copyFrom(Env& image, const std::string& name);
  Status append(const FileChange& change);
  Status commit(const FileChange& change);
  Status remove(const std::string& name);
  void discard(const std::string& name);
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string temporary(const std::string& name) const { return path(name) + kUnfinished; }

  static constexpr const char* kUnfinished = ".tmp.0";  // removed at a start over the folder
  const std::shared_ptr<Env> env_;
  const std::string folder_;
  std::map<std::string, Unfinished> unfinished_;  // by name
};

}  // namespace psd
