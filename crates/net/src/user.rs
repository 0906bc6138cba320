//! The user and groups of the peer of a Unix socket, as the kernel reports them.

use tokio::net::unix::UCred;

/// A user of this machine, with its groups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Supplementary group ids. For a peer, the list is empty if the peer is the superuser, who needs no groups, or if
    /// this process cannot determine the groups of the peer.
    pub groups: Vec<u32>,
}

impl User {
    /// Returns the user as whom this process runs.
    pub(crate) fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        User { uid, gid, groups: groups_of(std::process::id(), uid).unwrap_or_default() }
    }

    /// Returns the user of the peer of a Unix socket.
    pub(crate) fn of(cred: UCred) -> Self {
        let (uid, gid) = (cred.uid(), cred.gid());
        let process = cred.pid().and_then(|pid| u32::try_from(pid).ok());
        let groups = process.filter(|_| uid != 0).and_then(|process| groups_of(process, uid));
        User { uid, gid, groups: groups.unwrap_or_default() }
    }
}

/// Returns the supplementary groups of a process; `None` if the process does not run as user `uid`. Another process
/// of user `uid` may have reused the process id. The groups of that process are acceptable too, because the user is
/// the same.
fn groups_of(process: u32, uid: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    parse(&status, uid)
}

fn parse(status: &str, uid: u32) -> Option<Vec<u32>> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // In `/proc/PID/status`, the real, effective, saved and file system uid follow `Uid:`, so the second number is the
    // effective uid.
    let effective: u32 = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let groups = field("Groups:")?.split_whitespace().map(|group| group.parse().ok()).collect::<Option<_>>()?;
    (effective == uid).then_some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_a_user_are_found() {
        let status = "Name:\tx\nUid:\t1\t1000\t1\t1\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \n";
        assert_eq!(parse(status, 1000), Some(vec![4, 24, 1000]));
        assert_eq!(parse(status, 1), None);
        assert_eq!(parse("Uid:\t1\t1\t1\t1\nGroups:\t\n", 1), Some(vec![]));
        assert_eq!(parse("", 1), None);
        let own = User::own();
        assert_eq!(groups_of(std::process::id(), own.uid), Some(own.groups));
    }
}
