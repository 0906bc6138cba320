//! Who is at the other end of a Unix socket, as the kernel says.

use tokio::net::unix::UCred;

/// A user of this machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// The effective user.
    pub uid: u32,
    /// The effective group.
    pub gid: u32,
    /// The supplementary groups; none of the superuser, who needs none, nor where they cannot be told.
    pub groups: Vec<u32>,
}

impl User {
    /// That of this process, as far as anybody needs to know within it.
    pub(crate) fn own() -> Self {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        User { uid, gid, groups: groups_of(std::process::id(), uid).unwrap_or_default() }
    }

    /// The peer of a socket.
    pub(crate) fn of(cred: UCred) -> Self {
        let (uid, gid) = (cred.uid(), cred.gid());
        let process = cred.pid().and_then(|pid| u32::try_from(pid).ok());
        let groups = process.filter(|_| uid != 0).and_then(|process| groups_of(process, uid));
        User { uid, gid, groups: groups.unwrap_or_default() }
    }
}

/// The supplementary groups of a process that runs as this user. Another process may have its number by now: then it is one of the same user.
fn groups_of(process: u32, uid: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    parse(&status, uid)
}

fn parse(status: &str, uid: u32) -> Option<Vec<u32>> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    // Real, effective, saved, of the file system.
    let effective: u32 = field("Uid:")?.split_whitespace().nth(1)?.parse().ok()?;
    let groups = field("Groups:")?.split_whitespace().map(|group| group.parse().ok()).collect::<Option<_>>()?;
    (effective == uid).then_some(groups)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_the_user() {
        let status = "Name:\tx\nUid:\t1\t1000\t1\t1\nGid:\t5\t5\t5\t5\nGroups:\t4 24 1000 \n";
        assert_eq!(parse(status, 1000), Some(vec![4, 24, 1000]));
        assert_eq!(parse(status, 1), None);
        assert_eq!(parse("Uid:\t1\t1\t1\t1\nGroups:\t\n", 1), Some(vec![]));
        assert_eq!(parse("", 1), None);
        let own = User::own();
        assert_eq!(groups_of(std::process::id(), own.uid), Some(own.groups));
    }
}
