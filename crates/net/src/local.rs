//! A check whether a Unix socket belongs to a trusted user, for sockets whose path a peer has sent.
//!
//! A malicious peer could send the path of any socket on this machine. The client would then trust the process behind
//! that socket as it trusts the peer. Even a connect(2) without any data may start a service (socket activation). So
//! both the socket and the listening process must belong to root or to the user of this process. For other sockets,
//! callers use the TCP address of the peer.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Returns whether this process trusts a server that runs as `user`. The process trusts root and its own user.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// Checks, before a connect, that the path is a socket which belongs to a trusted user. Does not follow a symbolic
/// link.
///
/// # Errors
/// `PermissionDenied` if the socket belongs to another user, `InvalidInput` if the path is not a socket, and the errors
/// of `lstat(2)`.
pub fn check_path(path: &Path) -> io::Result<()> {
    let found = std::fs::symlink_metadata(path)?;
    if !found.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a socket", path.display())));
    }
    check_user(found.uid())
}

/// Checks, after a connect, that the listening process runs as a trusted user. Another process may have replaced the
/// socket since [`check_path`].
///
/// # Errors
/// `PermissionDenied` if the process runs as another user, and the errors of `getsockopt(2)`.
pub fn check_peer(socket: impl AsFd) -> io::Result<()> {
    check_user(rustix::net::sockopt::socket_peercred(socket)?.uid.as_raw())
}

/// Checks that this process trusts a server that runs as `user`. Callers use this function if they have already read
/// the user from the peer credentials of the socket.
pub(crate) fn check_user(user: u32) -> io::Result<()> {
    if is_trusted(user) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("the socket belongs to user {user}, but only root and the user of this process are trusted"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn only_sockets_of_trusted_users_are_used() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        check_path(&path).unwrap();
        check_peer(UnixStream::connect(&path).unwrap()).unwrap();
        let kind = |path: &Path| check_path(path).unwrap_err().kind();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, b"").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(kind(&file), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&link), io::ErrorKind::InvalidInput);
        assert_eq!(kind(&dir.path().join("none")), io::ErrorKind::NotFound);
        // Only root can change the owner of a socket, so check the refusal of another user's socket only as root.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
            assert_eq!(kind(&path), io::ErrorKind::PermissionDenied);
        }
        drop(listener);
        let own = rustix::process::geteuid().as_raw();
        assert!(is_trusted(0) && is_trusted(own) && !is_trusted(own + 1));
    }
}
