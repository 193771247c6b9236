#include "server/checkpoint/log_format.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstring>

#include "server/checkpoint/record_bytes.h"
#include "server/store/staging_pool.h"

namespace psd {
namespace {

using namespace record_bytes;

static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);
static_assert(sizeof(AssignmentBytes) == kAssignmentRecordBytes);
static_assert(std::endian::native == std::endian::little, "logs are little endian");

constexpr char kMagic[] = "PSDLOG3\n";
static_assert(kMagic[6] == static_cast<char>('0' + kRecordFormat));
// Like the current format, except that updates have no hyperparameters.
constexpr char kMagicWithoutHyperparameters[] = "PSDLOG2\n";
// Moreover, updates have no shares, sources without a push.
constexpr char kMagicWithoutShares[] = "PSDLOG1\n";

struct SegmentBytes {
  char magic[8];
  uint32_t headerBytes, crc;  // CRC-32C of all that follows
  uint64_t segment, history, signature, firstRecord;
  uint64_t reserved[2];
};
static_assert(sizeof(SegmentBytes) == kSegmentHeaderBytes);
constexpr size_t kSegmentCovered = offsetof(SegmentBytes, segment);

constexpr uint64_t kInPlaceBytesMin = uint64_t{64} << 10;  // smaller gradients are copied with the rest

uint64_t padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

void append(std::vector<std::byte>& out, const void* data, size_t bytes) {
  const auto* from = static_cast<const std::byte*>(data);
  out.insert(out.end(), from, from + bytes);
}

void pad(std::vector<std::byte>& out) { out.resize(padded(out.size())); }

uint32_t recordCrc(std::span<const std::byte> record) { return crc32c(record.subspan(sizeof(uint32_t))); }

RecordHeader headerIn(std::span<const std::byte> bytes) {
  RecordHeader header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header;
}

uint64_t rowsBytes(const AppliedUpdate& update) {
  if (!update.rows) return 0;
  const uint64_t own =
      sizeof(RowsBytes) + update.rows->runs.size() * sizeof(RunBytes) + update.rows->ids.size_bytes();
  const RowSideChanges& beside = update.beside;
  if (beside.empty()) return own;
  return own + sizeof(BesideBytes) + beside.evicted.runs.size() * sizeof(RunBytes) +
         beside.evicted.ids.size_bytes() + beside.counted.size() * sizeof(CountedRunBytes) +
         beside.countedIds.size_bytes();
}

void appendHyperparameters(std::vector<std::byte>& out, const UpdateScalars& scalars) {
  const Hyperparameters& pushed = *scalars.pushed;
  const uint64_t values = pushed.sets.empty() ? 0 : pushed.sets.front().size();
  const HyperparametersBytes sizes{pushed.runs.size(), pushed.sets.size(), values, scalars.factor};
  append(out, &sizes, sizeof sizes);
  for (const Hyperparameters::Run& run : pushed.runs) {
    const HyperparameterRunBytes bytes{run.end, run.set, run.steps};
    append(out, &bytes, sizeof bytes);
  }
  for (const std::vector<double>& set : pushed.sets) append(out, set.data(), values * sizeof(double));
}

void appendRuns(std::vector<std::byte>& out, std::span<const RowRun> runs) {
  for (const RowRun& run : runs) {
    const RunBytes bytes{run.table, run.count};
    append(out, &bytes, sizeof bytes);
  }
}

void appendBeside(std::vector<std::byte>& out, const RowSideChanges& beside) {
  const BesideBytes sizes{beside.evicted.runs.size(), beside.evicted.ids.size(), beside.counted.size(),
                          beside.countedIds.size()};
  append(out, &sizes, sizeof sizes);
  appendRuns(out, beside.evicted.runs);
  for (const CountedRun& run : beside.counted) {
    const CountedRunBytes bytes{run.table, run.count, run.pushes, run.blockBits};
    append(out, &bytes, sizeof bytes);
  }
  append(out, beside.evicted.ids.data(), beside.evicted.ids.size_bytes());
  append(out, beside.countedIds.data(), beside.countedIds.size_bytes());
}

void appendRows(std::vector<std::byte>& out, const RowIds& rows) {
  const RowsBytes sizes{rows.runs.size(), rows.ids.size()};
  append(out, &sizes, sizeof sizes);
  appendRuns(out, rows.runs);
  append(out, rows.ids.data(), rows.ids.size_bytes());
}

/// Reads a record's parts sequentially from an offset on. After the first part that does not fit, all fail.
class RecordParts {
 public:
  RecordParts(std::span<const std::byte> bytes, uint64_t at)
      : bytes_(bytes), at_(std::min<uint64_t>(at, bytes.size())) {
    fit_ = at <= bytes.size();
  }
  template <class Part>
  Part one() {
    Part part{};
    if (take(1, sizeof part)) std::memcpy(&part, bytes_.data() + at_ - sizeof part, sizeof part);
    return part;
  }
  template <class Part, class Use>
  void each(uint64_t count, const Use& use) {
    if (count > (bytes_.size() - at_) / sizeof(Part)) fit_ = false;
    for (uint64_t i = 0; fit_ && i < count; i++) use(one<Part>());
  }
  LogRecord::Ids ids(uint64_t count) {
    const uint64_t at = at_;
    return take(count, sizeof(uint64_t)) ? LogRecord::Ids{at, count} : LogRecord::Ids();
  }
  bool fit() const { return fit_; }
  uint64_t at() const { return at_; }

 private:
  bool take(uint64_t count, uint64_t size) {
    fit_ = fit_ && count <= (bytes_.size() - at_) / size;
    if (fit_) at_ += count * size;
    return fit_;
  }
  std::span<const std::byte> bytes_;
  uint64_t at_;
  bool fit_ = true;
};

/// Reads the rows at record.gradientAt and advances it past them. `beside`: evictions and counts precede
/// them. Returns false if they do not fit.
bool readRows(std::span<const std::byte> bytes, LogRecord& record, bool beside) {
  RecordParts parts(bytes, record.gradientAt);
  const auto readRuns = [&](uint64_t count, std::vector<RowRun>& runs) {
    parts.each<RunBytes>(count, [&](const RunBytes& run) { runs.push_back({run.table, run.count}); });
  };
  if (beside) {
    const auto sizes = parts.one<BesideBytes>();
    readRuns(sizes.evictedRuns, record.evictedRuns);
    parts.each<CountedRunBytes>(sizes.countedRuns, [&](const CountedRunBytes& run) {
      record.countedRuns.push_back({run.table, run.count, run.pushes, run.blockBits});
    });
    record.evictedIds = parts.ids(sizes.evictedIds);
    record.countedIds = parts.ids(sizes.countedIds);
  }
  const auto sizes = parts.one<RowsBytes>();
  readRuns(sizes.runs, record.runs);
  record.ids = parts.ids(sizes.ids);
  record.gradientAt = parts.at();
  return parts.fit();
}

/// Reads the hyperparameters at record.gradientAt. Returns false if they do not fit or are inconsistent.
bool readHyperparameters(std::span<const std::byte> bytes, LogRecord& record) {
  RecordParts parts(bytes, record.gradientAt);
  const auto sizes = parts.one<HyperparametersBytes>();
  if (sizes.values == 0 && sizes.sets > 0) return false;
  auto pushed = std::make_shared<Hyperparameters>();
  bool fits = true;
  parts.each<HyperparameterRunBytes>(sizes.runs, [&](const HyperparameterRunBytes& run) {
    const uint64_t begin = pushed->runs.empty() ? 0 : pushed->runs.back().end;
    fits = fits && run.end > begin && run.set < sizes.sets;
    pushed->runs.push_back({run.end, run.set, run.steps != 0});
  });
  for (uint64_t set = 0; set < sizes.sets && parts.fit(); set++) {
    std::vector<double>& values = pushed->sets.emplace_back();
    parts.each<double>(sizes.values, [&](double value) { values.push_back(value); });
  }
  record.scalars.pushed = std::move(pushed);
  record.scalars.factor = sizes.factor;
  record.gradientAt = parts.at();
  return parts.fit() && fits;
}

/// Whether the record is an update of a shard or a row shard.
bool isUpdate(uint32_t type) {
  type &= ~kWithHyperparameters;
  return (type >= kUpdateRecord && type <= kRowUpdateBesideRecord && type != kAssignmentRecord) ||
         type == kDifferenceRecord;
}

/// Returns false if the ranks do not fit, or are not below the world size.
bool readDeparted(std::span<const std::byte> bytes, const RecordHeader& header, LogRecord& record) {
  Departed& departed = record.departed.emplace();
  const uint64_t count = header.gradientBytes / sizeof(uint32_t);
  if (header.elements > UINT32_MAX || count > (bytes.size() - kRecordHeaderBytes) / sizeof(uint32_t))
    return false;
  departed.worldSize = static_cast<uint32_t>(header.elements);
  RecordParts parts(bytes, kRecordHeaderBytes);
  parts.each<uint32_t>(count, [&](uint32_t rank) { departed.ranks.insert(Rank{rank}); });
  return parts.fit() && (departed.ranks.empty() || departed.ranks.rbegin()->value < departed.worldSize);
}

/// Returns false if the change does not fit. Its bytes refer to `bytes`.
bool readFileChange(std::span<const std::byte> bytes, const RecordHeader& header, FileChange& change) {
  const uint64_t nameBytes = header.codecBytes, room = bytes.size() - kRecordHeaderBytes;
  if (header.part > static_cast<uint32_t>(FileChange::Kind::remove) || padded(nameBytes) > room ||
      header.gradientBytes > room - padded(nameBytes)) {
    return false;
  }
  const std::span<const std::byte> rest = bytes.subspan(kRecordHeaderBytes);
  change = {FileChange::Kind{header.part}, std::string(reinterpret_cast<const char*>(rest.data()), nameBytes),
            header.elements, rest.subspan(padded(nameBytes), header.gradientBytes)};
  return true;
}

Result<std::shared_ptr<const BufferSet>> parseBuffers(std::span<const std::byte> bytes,
                                                      const RecordHeader& header) {
  const auto rest = bytes.subspan(kRecordHeaderBytes);
  if (header.gradientBytes > rest.size()) return Error{ErrorCode::io, "its buffers do not fit into it"};
  const auto file = rest.first(header.gradientBytes);
  return BufferSet::parse({file.begin(), file.end()});
}

/// The first `count` sources of an update's record, which must have at least that many.
std::vector<UpdateSource> sourcesIn(std::span<const std::byte> bytes, uint32_t count) {
  std::vector<UpdateSource> sources;
  for (uint32_t i = 0; i < count; i++) {
    SourceBytes source;
    std::memcpy(&source, bytes.data() + kRecordHeaderBytes + i * sizeof source, sizeof source);
    sources.push_back({Rank{source.rank}, source.samples, source.incarnation, Step{source.step},
                       Version{source.basis}, source.staleness});
  }
  return sources;
}

LogRecord parseAssignment(std::span<const std::byte, sizeof(AssignmentBytes)> from) {
  AssignmentBytes bytes;
  std::memcpy(&bytes, from.data(), sizeof bytes);
  LogRecord record;
  record.number = bytes.number;
  record.firstOfWrite = bytes.firstOfWrite;
  record.assignment = LoggedAssignment{{bytes.plan, bytes.samples, bytes.epochs, bytes.firstEpoch},
                                       {{Step{bytes.step}, {bytes.epoch, bytes.begin, bytes.count}},
                                        {Rank{bytes.rank}, bytes.incarnation},
                                        bytes.assignment}};
  return record;
}

/// Checks the gradient of an update's record, and reads its codec, whose name is at `nameAt`.
Status readGradient(std::span<const std::byte> bytes, const RecordHeader& header, uint64_t nameAt,
                    LogRecord& record) {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "record " + std::to_string(header.number) + ": " + why};
  };
  if (header.codecBytes > 0) {
    if (header.elements == 0 || header.elements > kCodedElementsMax) {
      return bad("a codec does not hold " + std::to_string(header.elements) + " elements");
    }
    const std::string spec(reinterpret_cast<const char*>(bytes.data()) + nameAt, header.codecBytes);
    PSD_ASSIGN_OR_RETURN(record.codec, makeCodec(spec));
    const auto gradient = bytes.subspan(record.gradientAt, record.gradientBytes);
    PSD_RETURN_IF_ERROR(record.codec->check(gradient, record.elements));
  } else if (header.gradientBytes / sizeof(float) != header.elements ||
             header.gradientBytes % sizeof(float)) {
    return bad("its gradient has " + std::to_string(header.gradientBytes) + " bytes for " +
               std::to_string(header.elements) + " elements");
  }
  return {};
}

}  // namespace

std::array<std::byte, kSegmentHeaderBytes> formatSegmentHeader(const SegmentHeader& header) {
  SegmentBytes bytes{};
  std::memcpy(bytes.magic, kMagic, sizeof bytes.magic);
  bytes.headerBytes = kSegmentHeaderBytes;
  bytes.segment = header.segment;
  bytes.history = header.history;
  bytes.signature = header.signature;
  bytes.firstRecord = header.firstRecord;
  bytes.crc = crc32c(std::as_bytes(std::span(&bytes, 1)).subspan(kSegmentCovered));
  return std::bit_cast<std::array<std::byte, kSegmentHeaderBytes>>(bytes);
}

std::optional<SegmentHeader> parseSegmentHeader(std::span<const std::byte> from) {
  if (from.size() < kSegmentHeaderBytes) return {};
  SegmentBytes bytes;
  std::memcpy(&bytes, from.data(), sizeof bytes);
  const bool known = std::ranges::any_of(
      std::array{kMagic, kMagicWithoutHyperparameters, kMagicWithoutShares},
      [&](const char* magic) { return std::memcmp(bytes.magic, magic, sizeof bytes.magic) == 0; });
  if (!known) return {};
  if (bytes.headerBytes != kSegmentHeaderBytes) return {};
  if (crc32c(from.first(kSegmentHeaderBytes).subspan(kSegmentCovered)) != bytes.crc) return {};
  return SegmentHeader{bytes.segment, bytes.history, bytes.signature, bytes.firstRecord};
}

std::string segmentPath(const std::string& folder, uint64_t segment) {
  char name[48];
  std::snprintf(name, sizeof name, "log-%010llu.psdlog", static_cast<unsigned long long>(segment));
  return folder + "/" + name;
}

std::optional<uint64_t> segmentOf(std::string_view name) {
  constexpr std::string_view kPrefix = "log-", kSuffix = ".psdlog";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return {};
  if (name.size() < kPrefix.size() + kSuffix.size() + 10) return {};
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  uint64_t segment = 0;
  auto [last, error] = std::from_chars(begin, end, segment);
  if (error != std::errc() || last != end || segment > kFileNumberMax) return {};
  if (segmentPath("", segment) != "/" + std::string(name)) return {};  // leading zeros beyond the padding
  return segment;
}

Gradient LogRecord::gradient() const {
  const std::span<const std::byte> data = std::span(bytes).subspan(gradientAt, gradientBytes);
  if (codec) return {*codec, data, elements};
  // The offset is 8-byte aligned in the vector's memory, as floats require.
  return std::span(reinterpret_cast<const float*>(data.data()), elements);
}

RowIds LogRecord::rows() const { return {runs, idsAt(ids)}; }

RowSideChanges LogRecord::beside() const {
  return {{evictedRuns, idsAt(evictedIds)}, countedRuns, idsAt(countedIds)};
}

std::span<const uint64_t> LogRecord::idsAt(const Ids& some) const {
  return {reinterpret_cast<const uint64_t*>(bytes.data() + some.at), some.count};
}

uint64_t recordBytes(const AppliedUpdate& update) {
  const Codec* const codec = update.gradient.codec();
  return sizeof(RecordHeader) + update.sources.size() * sizeof(SourceBytes) +
         padded(codec ? codec->name().size() : 0) +
         (update.scalars.pushed ? update.scalars.pushed->bytes() : 0) + rowsBytes(update) +
         padded(update.gradient.bytes().size());
}

namespace {

/// Appends the record of an update without its gradient.
void appendUpTo(std::vector<std::byte>& out, uint64_t number, ShardId shard, const AppliedUpdate& update) {
  // The codec's name suffices to decode, and is all that is known: the options are the trainer's.
  const std::string_view codec = update.gradient.codec() ? update.gradient.codec()->name() : "";
  RecordHeader header{};
  header.type = update.scalars.difference ? kDifferenceRecord : kUpdateRecord;
  if (update.rows) header.type = update.beside.empty() ? kRowUpdateRecord : kRowUpdateBesideRecord;
  if (update.scalars.pushed) header.type |= kWithHyperparameters;
  header.number = number;
  header.shard = shard.value;
  header.sources = static_cast<uint32_t>(update.sources.size());
  header.update = update.scalars.number;
  header.learningRate = update.scalars.learningRate;
  header.elements = update.gradient.size();
  header.codecBytes = static_cast<uint32_t>(codec.size());
  header.part = static_cast<uint32_t>(update.part);
  header.gradientBytes = update.gradient.bytes().size();
  header.bytes = recordBytes(update);
  append(out, &header, sizeof header);
  for (const UpdateSource& source : update.sources) {
    const SourceBytes bytes{source.rank.value, source.samples,     source.incarnation,
                            source.step.value, source.basis.value, source.staleness};
    append(out, &bytes, sizeof bytes);
  }
  append(out, codec.data(), codec.size());
  pad(out);
  if (update.scalars.pushed) appendHyperparameters(out, update.scalars);
  if (update.rows && !update.beside.empty()) appendBeside(out, update.beside);
  if (update.rows) appendRows(out, *update.rows);
}

}  // namespace

void appendRecord(std::vector<std::byte>& out, uint64_t number, ShardId shard, const AppliedUpdate& update) {
  const std::span<const std::byte> gradient = update.gradient.bytes();
  appendUpTo(out, number, shard, update);
  append(out, gradient.data(), gradient.size());
  pad(out);
}

void appendRecord(PendingRecords& out, ByteBudget::Lease space, uint64_t number, ShardId shard,
                  const AppliedUpdate& update) {
  const std::span<const std::byte> gradient = update.gradient.bytes();
  const uint64_t bytes = recordBytes(update);
  const bool aligned = (reinterpret_cast<uintptr_t>(gradient.data()) | gradient.size()) % 8 == 0;
  if (!aligned || gradient.size() < kInPlaceBytesMin || !StagingPool::transfer(update.owner)) {
    return appendRecord(out.place(bytes, std::move(space)), number, shard, update);
  }
  appendUpTo(out.placeBefore(gradient, update.owner, bytes - gradient.size(), std::move(space)), number,
             shard, update);
}

void appendRecord(std::vector<std::byte>& out, uint64_t number, const LoggedAssignment& logged) {
  const auto& [plan, assignment] = logged;
  AssignmentBytes bytes{};
  bytes.type = kAssignmentRecord;
  bytes.bytes = sizeof bytes;
  bytes.number = number;
  bytes.rank = assignment.process.rank.value;
  bytes.incarnation = assignment.process.incarnation;
  bytes.step = assignment.step.value;
  bytes.epoch = assignment.range.epoch;
  bytes.begin = assignment.range.begin;
  bytes.count = assignment.range.count;
  bytes.plan = plan.number;
  bytes.samples = plan.samples;
  bytes.epochs = plan.epochs;
  bytes.firstEpoch = plan.firstEpoch;
  bytes.assignment = assignment.number;
  append(out, &bytes, sizeof bytes);
}

uint64_t recordBytes(const Departed& departed) {
  return sizeof(RecordHeader) + padded(departed.ranks.size() * sizeof(uint32_t));
}

void appendRecord(std::vector<std::byte>& out, uint64_t number, const Departed& departed) {
  RecordHeader header{};
  header.type = kDepartedRecord;
  header.bytes = recordBytes(departed);
  header.number = number;
  header.elements = departed.worldSize;
  header.gradientBytes = departed.ranks.size() * sizeof(uint32_t);
  append(out, &header, sizeof header);
  for (const Rank rank : departed.ranks) append(out, &rank.value, sizeof rank.value);
  pad(out);
}

uint64_t recordBytes(const BufferSet& buffers) {
  return sizeof(RecordHeader) + padded(buffers.file().size());
}

void appendRecord(std::vector<std::byte>& out, uint64_t number, const BufferSet& buffers) {
  RecordHeader header{};
  header.type = kBuffersRecord;
  header.bytes = recordBytes(buffers);
  header.number = number;
  header.gradientBytes = buffers.file().size();
  append(out, &header, sizeof header);
  append(out, buffers.file().data(), buffers.file().size());
  pad(out);
}

uint64_t recordBytes(const FileChange& change) {
  return sizeof(RecordHeader) + padded(change.name.size()) + padded(change.bytes.size());
}

void appendRecord(std::vector<std::byte>& out, uint64_t number, const FileChange& change) {
  RecordHeader header{};
  header.type = kFileRecord;
  header.bytes = recordBytes(change);
  header.number = number;
  header.elements = change.offset;
  header.codecBytes = static_cast<uint32_t>(change.name.size());
  header.part = static_cast<uint32_t>(change.kind);
  header.gradientBytes = change.bytes.size();
  append(out, &header, sizeof header);
  append(out, change.name.data(), change.name.size());
  pad(out);
  append(out, change.bytes.data(), change.bytes.size());
  pad(out);
}

void sealRecords(std::span<std::byte> bytes, uint64_t firstOfWrite, std::span<const std::byte> rest) {
  while (!bytes.empty()) {
    RecordHeader header = headerIn(bytes);
    header.firstOfWrite = firstOfWrite;
    std::memcpy(bytes.data(), &header, sizeof header);
    const size_t here = std::min<size_t>(header.bytes, bytes.size());
    header.crc = recordCrc(bytes.first(here));
    if (here < header.bytes) header.crc = crc32c(rest, header.crc);
    std::memcpy(bytes.data(), &header, sizeof header);
    bytes = bytes.subspan(here);
  }
}

std::optional<uint64_t> recordBytes(std::span<const std::byte, kRecordPrefixBytes> prefix) {
  uint64_t bytes = 0;
  std::memcpy(&bytes, prefix.data() + offsetof(RecordHeader, bytes), sizeof bytes);
  if (bytes < kRecordHeaderBytes || bytes % 8 != 0 || bytes > kRecordBytesMax) return {};
  return bytes;
}

std::optional<RecordPlace> recordPlace(std::span<const std::byte, kRecordHeaderBytes> bytes) {
  const RecordHeader header = headerIn(bytes);
  const bool known =
      isUpdate(header.type) || header.type == kAssignmentRecord || header.type == kBuffersRecord;
  if (!recordBytes(bytes.first<kRecordPrefixBytes>()) || !known) return {};
  return RecordPlace{header.bytes, header.number, header.firstOfWrite};
}

bool hasRightChecksum(std::span<const std::byte> record) {
  return record.size() >= kRecordHeaderBytes && headerIn(record).crc == recordCrc(record);
}

RecordChecksum::RecordChecksum(std::span<const std::byte, kRecordPrefixBytes> prefix) {
  std::memcpy(&announced_, prefix.data(), sizeof announced_);
  computed_ = recordCrc(prefix);
}

namespace {

Result<LogRecord> parseUpdate(std::vector<std::byte> bytes, const RecordHeader& header) {
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "record " + std::to_string(header.number) + ": " + why};
  };
  if (!isUpdate(header.type)) {
    return bad("is of type " + std::to_string(header.type) + ", which this psd does not know");
  }
  if (header.part > static_cast<uint32_t>(UpdatePart::last)) {
    return bad("is part " + std::to_string(header.part) + " of an update, which this psd does not know");
  }
  LogRecord record;
  record.part = UpdatePart{header.part};
  const uint64_t sourcesEnd = kRecordHeaderBytes + uint64_t{header.sources} * sizeof(SourceBytes);
  record.gradientAt = sourcesEnd + padded(header.codecBytes);
  record.scalars = {header.update, header.learningRate};
  const uint32_t type = header.type & ~kWithHyperparameters;
  if (type != header.type && !readHyperparameters(bytes, record)) {
    return bad("its hyperparameters do not fit into it");
  }
  record.ofRows = type == kRowUpdateRecord || type == kRowUpdateBesideRecord;
  const bool beside = type == kRowUpdateBesideRecord;
  if (record.ofRows && !readRows(bytes, record, beside)) return bad("its rows do not fit into it");
  record.gradientBytes = header.gradientBytes;
  if (record.gradientAt > bytes.size() || bytes.size() - record.gradientAt < header.gradientBytes) {
    return bad("its parts do not fit into it");
  }
  record.number = header.number;
  record.firstOfWrite = header.firstOfWrite;
  record.shard = {header.shard};
  record.scalars.difference = type == kDifferenceRecord;
  record.elements = header.elements;
  record.sources = sourcesIn(bytes, header.sources);
  PSD_RETURN_IF_ERROR(readGradient(bytes, header, sourcesEnd, record));
  record.bytes = std::move(bytes);
  return record;
}

}  // namespace

Result<std::optional<LogRecord>> parseRecord(std::vector<std::byte> bytes) {
  if (!hasRightChecksum(bytes) || headerIn(bytes).bytes != bytes.size()) return std::optional<LogRecord>();
  PSD_ASSIGN_OR_RETURN(LogRecord record, parseVerifiedRecord(std::move(bytes)));
  return std::optional(std::move(record));
}

Result<LogRecord> parseVerifiedRecord(std::vector<std::byte> bytes) {
  const RecordHeader header = headerIn(bytes);
  const auto bad = [&](const std::string& why) {
    return Error{ErrorCode::io, "record " + std::to_string(header.number) + ": " + why};
  };
  if (header.type == kAssignmentRecord) {
    if (bytes.size() != sizeof(AssignmentBytes)) return bad("has the wrong size for an assignment");
    LogRecord record = parseAssignment(std::span(bytes).first<sizeof(AssignmentBytes)>());
    record.bytes = std::move(bytes);
    return record;
  }
  if (header.type == kDepartedRecord) {
    LogRecord record;
    record.number = header.number;
    if (!readDeparted(bytes, header, record)) return bad("its ranks do not fit into it");
    return record;
  }
  if (header.type == kFileRecord) {
    LogRecord record;
    record.number = header.number;
    record.bytes = std::move(bytes);
    if (!readFileChange(record.bytes, header, record.file.emplace())) {
      return bad("its change of a file does not fit into it");
    }
    return record;
  }
  if (header.type == kBuffersRecord) {
    auto buffers = parseBuffers(bytes, header);
    if (!buffers.ok()) return bad(buffers.message());
    LogRecord record;
    record.number = header.number;
    record.firstOfWrite = header.firstOfWrite;
    record.buffers = *std::move(buffers);
    record.bytes = std::move(bytes);
    return record;
  }
  return parseUpdate(std::move(bytes), header);
}

}  // namespace psd
