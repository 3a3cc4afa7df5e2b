/* libvintf, which Debian does not have, for a system without manifests: no service is declared in one. */
#pragma once
#include <memory>
#include <set>
#include <string>

namespace android::vintf {

enum class HalFormat { AIDL };

struct HalManifest {
    template <typename Function>
    void forEachInstance(Function) const {}
    std::set<std::string> getAidlInstances(const std::string&, const std::string&) const { return {}; }
    bool hasAidlInstance(const std::string&, const std::string&, const std::string&) const { return false; }
};

struct VintfObject {
    static std::shared_ptr<VintfObject> GetInstance() { return std::make_shared<VintfObject>(); }
    std::shared_ptr<const HalManifest> getDeviceHalManifest() const { return std::make_shared<HalManifest>(); }
    std::shared_ptr<const HalManifest> getFrameworkHalManifest() const { return getDeviceHalManifest(); }
};

}  // namespace android::vintf
