//! Complete configuration files for the daemons: every key with its default, for administrators to edit.

use std::path::Path;

/// Returns the text of an `mgr.toml` that names every key with its default.
pub fn mgr(dir: &Path, cluster_file: &Path) -> String {
    format!(
        r##"# Configuration of a Weir mgr, for: weir mgr --config mgr.toml
# A line that begins with "#" shows a default. "weir mgr --help" and docs/configuration.md explain every key.

# The metadata store, made by "weir mkfs mgr".
dir = {dir}
# The identity and the secret of the file system.
cluster_file = {cluster_file}
# Where the iods are. Clients get these addresses: write names or addresses that they can reach.
iods = ["node1:2050", "node2:2050"]

# Where to listen.
#listen = ["0.0.0.0:2049"]

# How long the mgr keeps the state of a client that sends nothing.
#lease_secs = 90
# How long a layout may be used before the client renews it.
#capability_secs = 600
# How long kernel NFS clients use the filehandles of data servers before they ask for new ones.
#data_handle_secs = 21600
# How long kernel NFS clients wait for an unreachable iod before its data return EIO.
#iod_wait_secs = 6

# How new files are laid out where no directory says otherwise: bytes on one iod before the next, iods per file (0: all),
# copies of each file (1 or 2).
#stripe_unit = "1M"
#stripe_count = 0
#mirrors = 1
# What kernel NFS clients get: "files", "flexfiles", "flexfiles-striped" or "none".
#kernel_layout = "files"
# Below this length kernel NFS clients read and write through the mgr. Without it: the stripe unit of each file.
#mds_threshold = "1M"

# How long small writes through the mgr wait to be joined, and the memory that they may take together.
#mgr_gather_delay_ms = 2
#gather_memory = "64M"
# Files up to this size are kept with their metadata.
#inline_max = "4K"
# How new files are stored ("layout=log": experimental), and how Weir's own clients read and write files, where no
# directory says otherwise ("weir policy --help").
#policy = "write_threshold=64K,access=direct"

# What clients may mount. Without any [[export]]: everything, by everybody. Root on this machine can always administer.
#[[export]]
#path = "/home"
#clients = ["10.1.0.0/16"]
# Whether other machines must use ports below 1024, which only root can use. With "false", every account of these
# machines can use "weir", and can act for any user.
#privileged_ports = true
#access = "rw"
#squash = "root"
"##,
        dir = quoted(dir),
        cluster_file = quoted(cluster_file)
    )
}

/// Returns the text of an `iod.toml` that names every key with its default.
pub fn iod(dir: &Path, cluster_file: &Path) -> String {
    format!(
        r##"# Configuration of a Weir iod, for: weir iod --config iod.toml
# A line that begins with "#" shows a default. "weir iod --help" and docs/configuration.md explain every key.

# The object store, made by "weir mkfs iod".
dir = {dir}
# The identity and the secret of the file system: a copy of the mgr's file.
cluster_file = {cluster_file}

# Where to listen. Several iods of one machine need different ports.
#listen = ["0.0.0.0:2050"]
# Where to serve NFS to kernel clients; ["none"]: nowhere. Without it: the port of listen and 1000, or a free one.
#nfs_listen = ["0.0.0.0:3050"]
# Where kernel clients reach that, if they see this machine at another address.
#nfs_advertise = []

# Whether clients of this machine may connect by a Unix socket, and whether root and the iod's own user may read objects
# directly from its files. Clients use the socket of an iod that runs as root or as their own user.
#unix = true
#short_circuit = true

# Congestion control of TCP connections; "system" keeps the system's.
#congestion = "cubic"
# Most connections at a time, and how long a peer may be silent inside a request before its connection is closed.
#max_connections = 4096
#stall_secs = 30
"##,
        dir = quoted(dir),
        cluster_file = quoted(cluster_file)
    )
}

/// Returns the path as a TOML string with escapes.
fn quoted(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    toml::Value::String(path.to_string_lossy().into_owned()).to_string()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Removes the `#` before every default that a configuration file shows as a comment, and returns the new text.
    pub fn spelled_out(text: &str) -> String {
        let setting = |line: &str| line.strip_prefix('#').is_some_and(|rest| !rest.starts_with(' '));
        text.lines()
            .map(|line| if setting(line) { &line[1..] } else { line })
            .fold(String::new(), |out, line| out + line + "\n")
    }

    #[test]
    fn the_guide_contains_the_configuration_files() {
        let guide = include_str!("../../../docs/configuration.md");
        let cluster_file = Path::new("/etc/weir/cluster.toml");
        for text in [mgr(Path::new("/srv/weir/mgr"), cluster_file), iod(Path::new("/srv/weir/iod"), cluster_file)] {
            assert!(guide.contains(&text), "docs/configuration.md does not have this: {text}");
        }
    }

    #[test]
    fn the_file_of_an_mgr_has_every_key_with_its_default() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mgr.toml");
        let text = mgr(Path::new("/srv/a \"b\""), Path::new("/etc/c.toml"));
        let iods = vec!["node1:2050".to_owned(), "node2:2050".to_owned()];
        std::fs::write(&path, &text).unwrap();
        let default = ::mgr::Config::new("/srv/a \"b\"", "/etc/c.toml", iods);
        assert_eq!(::mgr::Config::load(&path).unwrap(), default);
        std::fs::write(&path, spelled_out(&text)).unwrap();
        let all = ::mgr::Config::load(&path).unwrap();
        assert_eq!((all.exports.len(), all.mds_threshold.as_deref()), (1, Some("1M")));
        let policy = all.policy.clone();
        assert_eq!(::mgr::Config { exports: Vec::new(), mds_threshold: None, policy: None, ..all }, default);
        assert!(policy.is_some());
    }
}
