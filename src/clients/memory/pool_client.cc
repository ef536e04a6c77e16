#include "clients/memory/pool_client.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/diag.h"
#include "base/page_name.h"
#include "base/wait_interrupt.h"
#include "proto/calls/calls.h"
#include "proto/methods.h"
#include "transport/clock.h"
#include "transport/link_model.h"

namespace strata::clients {

namespace {

constexpr uint64_t kHeaderBytes = 64;  // of a slot; its generation comes first
constexpr size_t kReadsOfBatch = 16;

transport::BlockingChannelOptions channel_options(const PoolClientOptions& options) {
  transport::BlockingChannelOptions of;
  of.link_model = options.link_model;
  of.counters = options.counters;
  return of;
}

// Whether it is the page that the directory says, once the generations were right.
Status check_page(const SlotRead& read) {
  STRATA_RETURN_IF_ERROR(verify_page(read.page, read.id));
  if (Llsn{header_of(read.page)->llsn} == read.at.llsn) return ok_status();
  return error_corruption(name_of(read.id) + " has llsn " +
                          std::to_string(header_of(read.page)->llsn) + " in slot " +
                          std::to_string(read.at.slot) + " of the memory node, not " +
                          std::to_string(read.at.llsn.value));
}

// Whatever is said of a reply that cannot be read, the call may have been carried out.
Status unreadable(const Status& why) { return error_outcome_unknown(cause_of(why)); }

}  // namespace

PoolClient::PoolClient(const transport::Secret& secret, transport::Address node,
                       PoolClientOptions options)
    : options_(std::move(options)),
      channel_(std::make_shared<transport::BlockingChannel>(secret, std::move(node),
                                                            channel_options(options_))) {}
PoolClient::~PoolClient() = default;

std::shared_ptr<const PoolClient::Attachment> PoolClient::now() const {
  const MutexLock lock(mutex_);
  return attachment_;
}

proto::PoolUser PoolClient::user() const {
  const auto attachment = now();
  return attachment == nullptr ? proto::PoolUser{} : attachment->user;
}

bool PoolClient::one_sided() const {
  const auto attachment = now();
  return attachment != nullptr && attachment->region->truly_one_sided();
}

bool PoolClient::pulls() const {
  const auto attachment = now();
  return attachment != nullptr && attachment->staging != nullptr;
}

Status PoolClient::call(uint16_t method, const std::string& request, uint64_t deadline_us,
                        std::string* reply) {
  const auto call = proto::call_of(method, deadline_us, options_.epoch);
  // A statement that is ended must not make the outcome of anything but its own reads unknown.
  const InterruptScope scope(method == proto::kPoolLookup ? WaitInterrupt::current() : nullptr);
  transport::BlockingReply answer;
  const Status status = channel_->call(call, request, &answer);
  *reply = std::move(answer.payload);
  return status;
}

StatusOr<std::shared_ptr<transport::RemoteRegion>> PoolClient::open_region(const std::string& name,
                                                                           uint64_t deadline_us) {
  const bool same_host = channel_->address().starts_with("unix:");
  const transport::RegionPath path = options_.path.value_or(
      same_host ? transport::RegionPath::kMapped : transport::RegionPath::kCalls);
  STRATA_ASSIGN_OR_RETURN(auto region,
                          transport::open_remote_region(channel_, name, path, deadline_us));
  return std::shared_ptr<transport::RemoteRegion>(std::move(region));
}

StatusOr<AttachedPool> PoolClient::attach(uint64_t incarnation, bool fresh, uint64_t deadline_us) {
  const InterruptScope carried_through(nullptr);
  auto attachment = std::make_shared<Attachment>();
  std::shared_ptr<const Attachment> before;
  {
    const MutexLock lock(mutex_);
    attachment->user = {options_.stream, options_.epoch, ++number_, incarnation};
    before = attachment_;
  }
  std::string bytes;
  STRATA_RETURN_IF_ERROR(
      call(proto::kPoolAttach,
           proto::encode(proto::PoolAttachRequest{attachment->user, fresh, options_.slots_max,
                                                  options_.token, options_.places}),
           deadline_us, &bytes));
  auto reply = proto::decode_pool_attach_reply(bytes);
  if (!reply.ok()) return unreadable(reply.status());
  if (incarnation != 0 && !fresh && reply->incarnation != incarnation)
    return error_not_found("the memory node has another pool of this stream");
  attachment->user.incarnation = reply->incarnation;
  attachment->region_name = reply->region;
  attachment->slots = reply->slots;
  attachment->headers_at = reply->headers_at;
  attachment->pages_at = reply->pages_at;
  if (before != nullptr && before->region_name == reply->region &&
      before->user.incarnation == reply->incarnation && before->region->truly_one_sided())
    attachment->region = before->region;
  else {
    auto region = open_region(reply->region, deadline_us);
    // Withdrawn just now, by another attach(): the content may well be there.
    if (is_not_found(region.status())) return error_peer_down(cause_of(region.status()));
    STRATA_ASSIGN_OR_RETURN(attachment->region, std::move(region));
  }
  const uint64_t bytes_there = attachment->region->bytes();
  const auto holds = [&](uint64_t at, uint64_t each) {
    return at % 8 == 0 && at <= bytes_there && (bytes_there - at) / each >= reply->slots;
  };
  if (reply->slots == 0 || !holds(reply->headers_at, kHeaderBytes) ||
      !holds(reply->pages_at, kPageBytes))
    return error_corruption("the memory node describes a pool that its memory does not hold");
  if (!reply->staging.empty() && attachment->region->truly_one_sided())
    attachment->staging = open_staging(reply->staging, reply->places, deadline_us);
  const AttachedPool attached{reply->incarnation, reply->made, reply->slots,
                              reply->checkpoint,  reply->bias, reply->checkpoint_epoch,
                              /*elsewhere=*/false};
  const MutexLock lock(mutex_);
  attachment_ = std::move(attachment);
  return attached;
}

StatusOr<proto::PoolListReply> PoolClient::list(uint32_t from) {
  std::string reply;
  STRATA_RETURN_IF_ERROR(call(
      proto::kPoolList, proto::encode(proto::PoolListRequest{user(), from, proto::kPoolListMax}),
      monotonic_us() + options_.call_timeout_us, &reply));
  return proto::decode_pool_list_reply(reply);
}

StatusOr<std::vector<proto::PoolPutReply::Taken>> PoolClient::put(
    const std::vector<proto::PoolImage>& images, Bytes pages, Lsn durable) {
  const auto attachment = now();
  std::vector<uint32_t> places;
  if (attachment != nullptr && attachment->staging != nullptr)
    places = attachment->staging->take(images.size());
  std::string bytes;
  if (!places.empty()) {
    STRATA_ASSIGN_OR_RETURN(bytes, put_staged(*attachment, images, pages, durable, places));
  } else {
    STRATA_RETURN_IF_ERROR(
        call(proto::kPoolPut, proto::encode(proto::PoolPutRequest{user(), durable, images, pages}),
             monotonic_us() + options_.call_timeout_us, &bytes));
  }
  auto reply = proto::decode_pool_put_reply(bytes);
  if (!reply.ok()) return unreadable(reply.status());
  if (reply->taken.size() != images.size())
    return error_outcome_unknown("a reply for another number of pages");
  return std::move(reply->taken);
}

// PCL3
StatusOr<std::string> PoolClient::put_staged(const Attachment& attachment,
                                             const std::vector<proto::PoolImage>& images,
                                             Bytes pages, Lsn durable,
                                             const std::vector<uint32_t>& places) {
  proto::PoolPutStagedRequest request{attachment.user, durable, {}};
  request.images.reserve(images.size());
  for (size_t i = 0; i < images.size(); ++i) {
    const char* const page = pages.data() + i * kPageBytes;
    std::memcpy(attachment.staging->page(places[i]), page, kPageBytes);
    request.images.push_back({images[i], Llsn{header_of(page)->llsn}, places[i]});
  }
  std::string bytes;
  const Status called = call(proto::kPoolPutStaged, proto::encode(request),
                             monotonic_us() + options_.call_timeout_us, &bytes);
  if (!is_outcome_unknown(called)) attachment.staging->give_back(places);
  STRATA_RETURN_IF_ERROR(called);
  // Over a real link the pull is an exchange of its own, within the call's.
  if (transport::LinkModel* const model = channel_->link_model(); model != nullptr)
    transport::sleep_until_ns(model->round_trip(transport::monotonic_ns(), pages.size(), 0));
  return bytes;
}

// Null: the pages go with the calls.
std::shared_ptr<StagingPlaces> PoolClient::open_staging(const std::string& name, uint32_t places,
                                                        uint64_t deadline_us) {
  auto region =
      transport::open_remote_region(channel_, name, transport::RegionPath::kMapped, deadline_us);
  const bool usable = region.ok() && (*region)->access() == transport::RegionAccess::kReadWrite &&
                      (*region)->bytes() / kPageBytes >= places;
  if (usable) return std::make_shared<StagingPlaces>(*std::move(region), places);
  diag(Severity::kInfo, "pages go to the memory node with the calls, it cannot pull them: %s",
       region.ok() ? "the memory is another one than it says"
                   : std::string(region.status().message()).c_str());
  return nullptr;
}

StatusOr<std::vector<proto::PoolLookupReply::Found>> PoolClient::lookup(
    const std::vector<PageId>& pages) {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(call(proto::kPoolLookup,
                              proto::encode(proto::PoolPagesRequest{user(), pages}),
                              monotonic_us() + options_.call_timeout_us, &bytes));
  STRATA_ASSIGN_OR_RETURN(proto::PoolLookupReply reply, proto::decode_pool_lookup_reply(bytes));
  if (reply.found.size() != pages.size())
    return error_corruption("a reply for another number of pages");
  return std::move(reply.found);
}

StatusOr<std::vector<Status>> PoolClient::drop(const std::vector<PageId>& pages) {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(call(proto::kPoolDrop,
                              proto::encode(proto::PoolPagesRequest{user(), pages}),
                              monotonic_us() + options_.call_timeout_us, &bytes));
  auto reply = proto::decode_pool_drop_reply(bytes);
  if (!reply.ok()) return unreadable(reply.status());
  if (reply->dropped.size() != pages.size())
    return error_outcome_unknown("a reply for another number of pages");
  return std::move(reply->dropped);
}

Status PoolClient::forget_space(SpaceId space) {
  std::string reply;
  return call(proto::kPoolForget, proto::encode(proto::PoolForgetRequest{user(), space}),
              monotonic_us() + options_.write_timeout_us, &reply);
}

StatusOr<proto::PoolWriteReply> PoolClient::write(Lsn below, uint32_t pages_max,
                                                  const std::vector<proto::PoolTarget>& targets) {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(call(
      proto::kPoolWrite, proto::encode(proto::PoolWriteRequest{user(), below, pages_max, targets}),
      monotonic_us() + options_.write_timeout_us, &bytes));
  auto reply = proto::decode_pool_write_reply(bytes);
  if (!reply.ok()) return unreadable(reply.status());
  if (!reply->answers.empty() && reply->answers.size() != targets.size())
    return error_outcome_unknown("a reply for another number of storage nodes");
  return reply;
}

StatusOr<proto::PoolWriteAgainReply> PoolClient::write_again(uint32_t from,
                                                             const proto::PoolTarget& target) {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(call(proto::kPoolWriteAgain,
                              proto::encode(proto::PoolWriteAgainRequest{user(), from, target}),
                              monotonic_us() + options_.write_timeout_us, &bytes));
  auto reply = proto::decode_pool_write_again_reply(bytes);
  if (!reply.ok()) return unreadable(reply.status());
  return reply;
}

StatusOr<proto::PoolSyncedReply> PoolClient::synced(uint64_t report) {
  std::string bytes;
  STRATA_RETURN_IF_ERROR(call(proto::kPoolSynced,
                              proto::encode(proto::PoolSyncedRequest{user(), report}),
                              monotonic_us() + options_.call_timeout_us, &bytes));
  return proto::decode_pool_synced_reply(bytes);
}

Status PoolClient::stored(const std::vector<StoredPage>& pages) {
  std::string reply;
  return call(proto::kPoolStored, proto::encode(proto::PoolStoredRequest{user(), pages}),
              monotonic_us() + options_.call_timeout_us, &reply);
}

Status PoolClient::checkpoint(Lsn lsn, uint64_t bias) {
  std::string reply;
  return call(proto::kPoolCheckpoint,
              proto::encode(proto::PoolCheckpointRequest{user(), lsn, bias}),
              monotonic_us() + options_.call_timeout_us, &reply);
}

// --- reading its memory ---

void PoolClient::read_slots(absl::Span<SlotRead> reads) {
  const auto attachment = now();
  if (attachment == nullptr) {
    for (SlotRead& read : reads) read.status = error_peer_down("no memory node is attached");
    return;
  }
  for (size_t at = 0; at < reads.size(); at += kReadsOfBatch)
    read_batch(*attachment, reads.subspan(at, kReadsOfBatch));
}

// PCL2
void PoolClient::read_batch(const Attachment& from, absl::Span<SlotRead> reads) {
  struct Generations {
    char before[8];
    char after[8];
  };
  std::array<Generations, kReadsOfBatch> generations;
  std::array<transport::RegionOperation, kReadsOfBatch * 3> operations;
  size_t count = 0;
  for (size_t i = 0; i < reads.size(); ++i) {
    const SlotRead& read = reads[i];
    // Nobody is told of a slot that is not there; the region checks its own bounds once more.
    const uint64_t header = from.headers_at + kHeaderBytes * read.at.slot;
    operations[count++] =
        transport::RegionOperation::get(header, absl::MakeSpan(generations[i].before));
    operations[count++] = transport::RegionOperation::get(
        from.pages_at + uint64_t{kPageBytes} * read.at.slot, absl::MakeSpan(read.page, kPageBytes));
    operations[count++] =
        transport::RegionOperation::get(header, absl::MakeSpan(generations[i].after));
  }
  const Status status = from.region->run(absl::MakeSpan(operations.data(), count),
                                         monotonic_us() + options_.call_timeout_us);
  for (size_t i = 0; i < reads.size(); ++i) {
    SlotRead& read = reads[i];
    read.status = status;
    if (!status.ok()) continue;
    const uint64_t before = load_u64(generations[i].before);
    const uint64_t after = load_u64(generations[i].after);
    if (before != after || before != read.at.generation || before % 2 != 0)
      read.status = error_conflict();
    else
      read.status = check_page(read);
    if (is_not_found(read.status))
      read.status = error_corruption(name_of(read.id) + " is empty on the memory node");
  }
}

}  // namespace strata::clients
