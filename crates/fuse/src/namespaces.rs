//! Mount namespaces: finds processes that still have a mount after it was unmounted in the namespace of this process.
//!
//! A container or a service that starts while a file system is mounted gets a copy of the mount
//! (mount_namespaces(7)). The file system ends only when every copy is unmounted.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A process in another mount namespace in which a file system is still mounted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// The id of the process that has the mount.
    pub process: u32,
    /// The name of the process.
    pub name: String,
}

/// Returns the device number of the mount at a directory, as in `/proc/self/mountinfo`. The caller has to call this
/// before the unmount.
pub fn device_at(dir: &Path) -> Option<String> {
    let dir = crate::mounted::place_of(dir).ok()?;
    crate::mounting::device_at(&fs::read("/proc/self/mountinfo").ok()?, &dir)
}

/// Returns a process in another mount namespace in which this device is mounted. Checks only one process of each
/// namespace.
pub fn holder(device: &str) -> Option<Holder> {
    let namespace = |process: &Path| fs::metadata(process.join("ns/mnt")).ok().map(|found| found.ino());
    let mut seen: HashSet<u64> = namespace(Path::new("/proc/self")).into_iter().collect();
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let path = entry.path();
        if !namespace(&path).is_some_and(|number| seen.insert(number)) {
            continue;
        }
        let mounts = fs::read(path.join("mountinfo")).unwrap_or_default();
        if has(&mounts, device) {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            return Some(Holder { process, name: name.trim().to_owned() });
        }
    }
    None
}

fn has(mounts: &[u8], device: &str) -> bool {
    let of = |line: &[u8]| line.split(|b| *b == b' ').nth(2) == Some(device.as_bytes());
    mounts.split(|b| *b == b'\n').any(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_found_in_a_list_of_mounts() {
        let mounts = b"22 1 0:21 / /proc rw - proc proc rw\n40 1 0:50 / /mnt/a rw - fuse.weir weir rw\n";
        assert!(has(mounts, "0:50") && has(mounts, "0:21"));
        assert!(!has(mounts, "0:5") && !has(b"", "0:50") && !has(b"1 2\n", "0:50"));
    }

    #[test]
    fn a_device_that_is_mounted_nowhere_has_no_holder() {
        assert_eq!(holder("4095:1048575"), None);
    }
}
