// A CUDA device for a torch without CUDA: its memory is the host's, and its operators run on the CPU.
//
// torch asks three things of a device: a guard (which device and stream are current), hooks (is there
// a device at all, what are its generators) and kernels. One boxed function stands for all kernels:
// it takes its arguments as CPU tensors of the same memory, and makes its results device tensors.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>
#include <torch/csrc/profiler/stubs/base.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <set>
#include <unordered_map>

namespace {

using c10::Device, c10::DeviceIndex, c10::DeviceType, c10::Storage, c10::Stream;

const Device GPU(DeviceType::CUDA, 0), HOST(DeviceType::CPU);

// Before anything is registered, so that TORCH_CPP_LOG_LEVEL holds for it.
const bool logging = (c10::initLogging(), true);

// Memory in bytes, in blocks of 512 as those of CUDA's caching allocator.
std::atomic<int64_t> allocated{0}, peak{0}, limit{INT64_MAX}, blocks{0};
// What torch.cuda.set_sync_debug_mode set: 0 nothing, 1 warn, 2 raise.
std::atomic<int64_t> sync_mode{0};

struct Guard : c10::impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device exchangeDevice(Device) const override { return GPU; }
  Device getDevice() const override { return GPU; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, GPU); }
  Stream getNewStream(Device, int) const override { return Stream(Stream::DEFAULT, GPU); }
  Stream exchangeStream(Stream) const override { return Stream(Stream::DEFAULT, GPU); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
  void synchronizeEvent(void*) const override {}
};

// A generator of the device, which draws from a generator of the CPU.
struct Generator : c10::GeneratorImpl {
  at::Generator host;
  explicit Generator(at::Generator host)
      : GeneratorImpl(GPU, c10::DispatchKeySet(c10::DispatchKey::CUDA)), host(std::move(host)) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    using Pointer = c10::intrusive_ptr<c10::TensorImpl>;
    host.set_state(at::Tensor(Pointer::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return host.get_state().getIntrusivePtr();
  }
  static DeviceType device_type() { return DeviceType::CUDA; }
  Generator* clone_impl() const override { return new Generator(host.clone()); }
};

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex current_device() const override { return 0; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  Device getDeviceFromPtr(void*) const override { return GPU; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override {
    static at::Generator made = at::make_generator<Generator>(at::detail::getDefaultCPUGenerator());
    return made;
  }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::make_generator<Generator>(at::detail::createCPUGenerator());
  }
};

// torch.profiler's events of a device, for a device that no library of NVIDIA's can trace.
struct ProfilerStubs : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
  void record(DeviceIndex* device, Event* event, int64_t* nanoseconds) const override {
    if (device) *device = 0;
    if (nanoseconds) *nanoseconds = now();
    *event = std::make_shared<int64_t>(now());
  }
  float elapsed(const Event* start, const Event* end) const override {
    auto at = [](const Event* event) { return *static_cast<int64_t*>(event->get()); };
    return float(at(end) - at(start)) / 1e3f;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> visit) const override { visit(0); }
  void synchronize() const override {}
};

// DDP's clock.
struct Timer : c10d::Timer {
  explicit Timer(Device) {}
  std::optional<int64_t> measureDifference(Event start, Event end) override {
    auto from = getTimestamp(start), to = getTimestamp(end);
    return from && to ? std::optional(*to - *from) : std::nullopt;
  }
};

// Memory of the device is that of a CPU storage, which it keeps alive.
struct Block {
  Storage storage;
  int64_t bytes;
};

void release(void* block) {
  allocated -= static_cast<Block*>(block)->bytes;
  --blocks;
  delete static_cast<Block*>(block);
}

c10::DataPtr memory_of(const Storage& storage) {
  int64_t bytes = (storage.nbytes() + 511) / 512 * 512;
  TORCH_CHECK_WITH(
      OutOfMemoryError, allocated + bytes <= limit, "CUDA out of memory. Tried to allocate ", bytes, " bytes.");
  int64_t now = allocated += bytes, before = peak;
  while (now > before && !peak.compare_exchange_weak(before, now)) {}
  ++blocks;
  return {storage.mutable_data(), new Block{storage, bytes}, &release, GPU};
}

at::Tensor like(const at::Tensor& given, Storage storage, c10::DispatchKey key) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), given.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(given.sizes(), given.strides(), given.storage_offset());
  made._set_conj(given.is_conj());
  made._set_neg(given.is_neg());
  if (given.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

// One call of an operator: its tensors on the device, each with a CPU tensor of the same memory.
class Call {
 public:
  bool any = false;
  std::vector<at::Tensor> of_host;

  at::Tensor to_host(const at::Tensor& given) {
    if (!given.defined() || !given.is_cuda()) {
      if (given.defined()) of_host.push_back(given);
      return given;
    }
    any = true;
    for (auto& [host, device] : tensors)
      if (device.is_same(given)) return host;
    tensors.emplace_back(like(given, to_host(given.storage()), c10::DispatchKey::CPU), given);
    return tensors.back().first;
  }

  Storage to_host(const Storage& given) {
    auto [found, is_new] = host_storages.try_emplace(given.unsafeGetStorageImpl());
    if (is_new) {
      c10::DataPtr memory(given.mutable_data(), HOST);
      found->second = Storage(
          Storage::use_byte_size_t(), given.nbytes(), std::move(memory), c10::GetCPUAllocator(), true);
      device_storages.emplace(found->second.unsafeGetStorageImpl(), given);
    }
    return found->second;
  }

  at::Tensor to_device(const at::Tensor& given) {
    if (!given.defined() || !given.is_cpu()) return given;
    for (auto& [host, device] : tensors)
      if (host.is_same(given)) return device;
    for (auto& other : of_host)
      if (other.is_same(given)) return given;
    return like(given, device_storage(given.storage()), c10::DispatchKey::CUDA);
  }

  // The operator may have resized its arguments, or given them other memory.
  void write_back() {
    for (auto& [key, host] : host_storages) {
      Storage& device = device_storages.at(host.unsafeGetStorageImpl());
      if (host.data() == device.data() && host.nbytes() == device.nbytes()) continue;
      auto memory = host.set_data_ptr(c10::DataPtr(host.mutable_data(), HOST));
      Storage grown(Storage::use_byte_size_t(), host.nbytes(), std::move(memory), c10::GetCPUAllocator(), true);
      device.set_data_ptr_noswap(memory_of(grown));
      device.set_nbytes(grown.nbytes());
    }
    for (auto& [host, device] : tensors) {
      auto* impl = device.unsafeGetTensorImpl();
      if (!host.storage().is_alias_of(host_storages.at(device.storage().unsafeGetStorageImpl())))
        impl->set_storage_keep_dtype(device_storage(host.storage()));
      impl->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors;  // on the host and on the device
  std::unordered_map<c10::StorageImpl*, Storage> host_storages, device_storages;  // by the other one

  Storage device_storage(const Storage& host) {
    auto [found, is_new] = device_storages.try_emplace(host.unsafeGetStorageImpl());
    if (is_new) found->second = Storage(Storage::use_byte_size_t(), host.nbytes(), memory_of(host), nullptr, false);
    return found->second;
  }
};

// A list of tensors, or of such lists, with `change` applied to each tensor.
template <typename Change>
c10::IValue changed(const c10::IValue& value, Change change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (at::Tensor each : value.toTensorList()) made.push_back(change(each));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (std::optional<at::Tensor> each : value.toOptionalTensorList())
      made.push_back(each ? std::optional(change(*each)) : each);
    return made;
  }
  if (value.isList() && !value.toListRef().empty() && value.toListRef()[0].isTensorList()) {
    c10::List<c10::List<at::Tensor>> made;
    for (const c10::IValue& each : value.toListRef()) made.push_back(changed(each, change).toTensorList());
    return made;
  }
  return value;
}

// Copies and indexing: CUDA, too, lets them take tensors of both devices.
bool takes_both(const std::string& name) {
  static const std::set<std::string> names{
      "aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_foreach_copy_", "aten::set_",
      "aten::index", "aten::index_put_", "aten::_index_put_impl_"};
  return names.count(name) || name.starts_with("c10d::");
}

void tell_of_waits(const std::string& name, const c10::IValue& first) {
  bool reads = name == "aten::copy_" && first.toTensor().is_cpu();
  for (auto other : {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select"}) reads |= name == other;
  if (!reads) return;
  TORCH_CHECK(sync_mode < 2, "called a synchronizing CUDA operation");
  TORCH_WARN("called a synchronizing CUDA operation");
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  size_t count = schema.arguments().size(), begin = stack->size() - count;
  if (sync_mode && count) tell_of_waits(schema.name(), (*stack)[begin]);
  std::optional<c10::InferenceMode> normal;
  std::optional<at::AutoDispatchBelowADInplaceOrView> below;
  if (c10::InferenceMode::is_enabled()) {
    // Inference tensors have no version counters, which operators want to set for the CPU tensors made here.
    normal.emplace(false);
    below.emplace();
  }
  Call call;
  std::optional<Device> asked;
  for (size_t i = begin; i < begin + count; ++i) {
    c10::IValue& value = (*stack)[i];
    if (value.isDevice()) {
      asked = value.toDevice();
      if (asked->is_cuda()) value = HOST;
    } else if (value.isGenerator() && value.toGenerator().device().is_cuda()) {
      value = static_cast<Generator*>(value.toGenerator().unsafeGetGeneratorImpl())->host;
    } else if (value.isStorage() && value.toStorage().device().is_cuda()) {
      value = call.to_host(value.toStorage());
    } else {
      value = changed(value, [&](const at::Tensor& given) { return call.to_host(given); });
    }
  }
  if (call.any && !takes_both(schema.name()))
    for (auto& other : call.of_host)
      TORCH_CHECK(
          other.dim() == 0 || !other.is_cpu(),
          "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (", schema.name(), ")");
  op.callBoxed(stack);
  call.write_back();
  if (!(asked ? asked->is_cuda() : call.any)) return;
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i)
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& made) { return call.to_device(made); });
}

// 0 is the composition of other operators: the CPU has none of CUDA's fused kernels.
int64_t attention_backend(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
    std::optional<double>, bool) {
  return 0;
}

ProfilerStubs profiler_stubs;
const bool registered = (torch::profiler::impl::registerCUDAMethods(&profiler_stubs), true);

}  // namespace

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
}
namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ::Timer)
}
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_fused_sdp_choice", &attention_backend);
  // These have one kernel for all devices, which would look for CUDA's.
  for (auto name : {"copy_", "_local_scalar_dense"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

// Collectives on tensors of the device, by gloo.
TORCH_LIBRARY_IMPL(c10d, CUDA, library) {
  for (auto name :
       {"allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "gather_", "scatter_", "send", "recv_", "barrier",
        "allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_",
        "reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_"})
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

extern "C" {
int64_t gpu_allocated() { return allocated; }
int64_t gpu_peak() { return peak; }
int64_t gpu_blocks() { return blocks; }
void gpu_reset_peak() { peak = allocated.load(); }
void gpu_set_limit(int64_t bytes) { limit = bytes; }
void gpu_set_sync_mode(int64_t mode) { sync_mode = mode; }
}
