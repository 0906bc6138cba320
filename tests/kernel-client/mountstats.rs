//! Parser for `/proc/self/mountstats`: the requests and bytes that the kernel's NFS client has sent and received for a
//! mount.

use std::collections::BTreeMap;

/// The counters of one NFS mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MountStats {
    /// The value of `pnfs=`: the name of the layout driver of the mount, or a word for a mount without a layout driver.
    pub pnfs: String,
    /// Number of requests by NFS operation. A request counts once, even if the client has sent it several times.
    pub operations: BTreeMap<String, u64>,
}

impl MountStats {
    /// Returns the number of requests with the NFS operation `operation`.
    pub fn count(&self, operation: &str) -> u64 {
        self.operations.get(operation).copied().unwrap_or(0)
    }

    /// Returns the number of requests that were sent after the counters `earlier` were read, by NFS operation. Omits
    /// operations without a request.
    pub fn since(&self, earlier: &MountStats) -> BTreeMap<String, u64> {
        let new = self.operations.iter().map(|(name, count)| (name.clone(), count - earlier.count(name)));
        new.filter(|(_, count)| *count > 0).collect()
    }
}

/// Returns the counters of the NFS mount at `at`, or `None` if `text` does not contain this mount.
pub fn parse(text: &str, at: &str) -> Option<MountStats> {
    let place = format!(" mounted on {at} with fstype nfs4");
    let mut lines = text.lines().skip_while(|line| !(line.starts_with("device ") && line.contains(&place))).skip(1);
    let mut stats = MountStats::default();
    let mut operations = false;
    for line in lines.by_ref().take_while(|line| !line.starts_with("device ")) {
        let line = line.trim();
        if let Some(version) = line.strip_prefix("nfsv4:") {
            let word = version.split(',').find_map(|word| word.trim().strip_prefix("pnfs="));
            stats.pnfs = word.unwrap_or_default().to_owned();
        }
        if operations
            && let Some((name, counters)) = line.split_once(": ")
            && let Some(Ok(count)) = counters.split_whitespace().next().map(str::parse)
            && count > 0
        {
            stats.operations.insert(name.to_owned(), count);
        }
        operations |= line == "per-op statistics";
    }
    operations.then_some(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
device rootfs mounted on / with fstype rootfs
device 10.0.2.2:/ mounted on /other with fstype nfs4 statvers=1.1
\tper-op statistics
\t        READ: 9 9 0 0 0 0 0 0 0
device 10.0.2.2:/ mounted on /mnt with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.1
\tnfsv4:\tbm0=0xfcffafff,acl=0x0,sessions,pnfs=LAYOUT_NFSV4_1_FILES,lease_time=90
\tevents:\t6 26
\tper-op statistics
\t        NULL: 1 1 0 44 24 31 6 42 0
\t        READ: 0 0 0 0 0 0 0 0 0
\t       WRITE: 21 22 0 20975980 3864 14817 548 15383 0

";

    #[test]
    fn parse_returns_the_counters_of_the_given_mount() {
        let stats = parse(TEXT, "/mnt").unwrap();
        assert_eq!(stats.pnfs, "LAYOUT_NFSV4_1_FILES");
        assert_eq!((stats.count("WRITE"), stats.count("READ"), stats.count("NULL")), (21, 0, 1));
        assert_eq!(parse(TEXT, "/other").unwrap().count("READ"), 9);
        assert_eq!(parse(TEXT, "/nowhere"), None);
        let mut before = stats.clone();
        before.operations.insert("WRITE".into(), 20);
        assert_eq!(stats.since(&before), [("WRITE".to_owned(), 1)].into());
    }
}
