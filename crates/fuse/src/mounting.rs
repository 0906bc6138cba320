//! Mounting and unmounting: root uses system calls, and other users use `fusermount3`.

use crate::config::Config;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use types::limits::PAYLOAD_MAX;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
/// The file system type in `/proc/mounts`.
const TYPE: &str = "fuse.weir";

fn with(what: impl std::fmt::Display, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Returns the mount options for mount(2) and for `fusermount3`. With `default_permissions`, the kernel checks
/// permissions by its cached attributes before it sends a request.
fn options(config: &Config) -> String {
    let mut options = format!("default_permissions,max_read={PAYLOAD_MAX}");
    if config.allow_other {
        options.push_str(",allow_other");
    }
    options
}

/// Mounts a file system at a directory. Returns the FUSE device, from which the mount reads requests.
pub(crate) fn mount(dir: &Path, config: &Config) -> io::Result<OwnedFd> {
    if rustix::process::geteuid().is_root() { by_call(dir, config) } else { by_helper(dir, config) }
}

fn by_call(dir: &Path, config: &Config) -> io::Result<OwnedFd> {
    if !std::fs::metadata(dir)?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let opened = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let fd = opened.map_err(|e| with(format_args!("{DEVICE} (is the kernel's fuse module there?)"), e))?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let data = format!("fd={},rootmode=40000,user_id={uid},group_id={gid},{}", fd.as_raw_fd(), options(config));
    let data = CString::new(data).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    rustix::mount::mount(config.source.as_str(), dir, TYPE, flags(config), Some(data.as_c_str()))
        .map_err(|e| with("mounting", e))?;
    Ok(fd)
}

fn flags(config: &Config) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, config.read_only);
    flags.set(MountFlags::NOSUID, !config.privileges.suid);
    flags.set(MountFlags::NODEV, !config.privileges.devices);
    flags.set(MountFlags::NOEXEC, !config.privileges.exec);
    flags
}

/// Changes the kernel's mount flags of a mounted file system to those in `config`.
pub(crate) fn remount(dir: &Path, config: &Config) -> io::Result<()> {
    Ok(rustix::mount::mount_remount(dir, flags(config), "")?)
}

/// Mounts with `fusermount3`, which may mount on behalf of ordinary users. The helper sends the descriptor of the FUSE
/// device over a socket, and finds the socket's descriptor number in an environment variable.
fn by_helper(dir: &Path, config: &Config) -> io::Result<OwnedFd> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if config.privileges.suid || config.privileges.devices {
        return Err(with("setuid bits and device nodes (-o suid, -o dev)", io::ErrorKind::PermissionDenied));
    }
    let writes = if config.read_only { "ro" } else { "rw" };
    let exec = if config.privileges.exec { "exec" } else { "noexec" };
    let all = format!("{writes},nosuid,nodev,{exec},fsname={},subtype=weir,{}", config.source, options(config));
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(all).arg("--").arg(dir).stdin(Stdio::null()).stdout(Stdio::null());
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let child = command.stderr(Stdio::piped()).spawn();
    let child = child.map_err(|e| with(format_args!("{HELPER} (Debian's package fuse3 has it)"), e))?;
    drop(theirs);
    let received = receive(&ours);
    let ended = child.wait_with_output()?;
    if !ended.status.success() {
        let why = String::from_utf8_lossy(&ended.stderr);
        return Err(io::Error::other(why.trim()));
    }
    received
}

fn receive(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut byte = [0u8; 1];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    });
    fds.next().ok_or_else(|| io::Error::other(format!("{HELPER} passed no FUSE device")))
}

/// Unmounts the file system at a directory. With `lazy`, detaches the mount at once; the file system ends after its
/// last use.
pub(crate) fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, flags | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::PERM) => {}
        outcome => return outcome.map_err(io::Error::from),
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir);
    let ended = command.output().map_err(|e| with(HELPER, e))?;
    if !ended.status.success() {
        let why = String::from_utf8_lossy(&ended.stderr);
        return Err(io::Error::other(why.trim()));
    }
    Ok(())
}

/// Returns the source of the topmost mount at a directory, or `None` if it is not a Weir mount.
pub(crate) fn source_at(dir: &Path) -> io::Result<Option<String>> {
    let mounts = std::fs::read("/proc/self/mounts")?;
    let ours = last_at(&mounts, dir).filter(|(_, kind)| *kind == TYPE.as_bytes());
    Ok(ours.map(|(source, _)| String::from_utf8_lossy(&unescape(source)).into_owned()))
}

/// Returns source and type of the last mount at a directory in `/proc/self/mounts`.
fn last_at<'a>(mounts: &'a [u8], dir: &Path) -> Option<(&'a [u8], &'a [u8])> {
    let dir = dir.as_os_str().as_bytes();
    let of = |line: &'a [u8]| {
        let mut fields = line.split(|b| *b == b' ');
        let source = fields.next()?;
        fields.next().filter(|at| unescape(at) == dir)?;
        Some((source, fields.next()?))
    };
    mounts.rsplit(|b| *b == b'\n').find_map(of)
}

/// Returns the device number (major, minor) of the mount at a directory.
pub(crate) fn device_numbers_at(dir: &Path) -> Option<(u32, u32)> {
    let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let device = device_at(&mounts, dir)?;
    let (major, minor) = device.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the device number of the last mount at a directory, as in `/proc/self/mountinfo` (proc(5)).
pub(crate) fn device_at(mounts: &[u8], dir: &Path) -> Option<String> {
    let dir = dir.as_os_str().as_bytes();
    let of = |line: &[u8]| {
        let mut fields = line.split(|b| *b == b' ').skip(2);
        let number = fields.next()?;
        let at = fields.nth(1)?;
        (unescape(at) == dir).then(|| String::from_utf8_lossy(number).into_owned())
    };
    mounts.rsplit(|b| *b == b'\n').find_map(of)
}

/// Decodes the octal escapes that `/proc/self/mounts` uses for blanks and similar bytes.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let value = octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match value {
            Some(byte) => (out.push(byte), rest = &behind[3..]).1,
            None => (out.push(*first), rest = behind).1,
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_a_mount_point_is_found() {
        let mounts = b"22 1 0:21 / /proc rw - proc proc rw\n40 1 0:50 / /mnt/a\\040b rw - fuse.weir weir rw\n41 1 0:51 / /mnt/a\\040b rw - x y z\n";
        assert_eq!(device_at(mounts, Path::new("/mnt/a b")).as_deref(), Some("0:51"));
        assert_eq!(device_at(mounts, Path::new("/mnt/a")), None);
        assert_eq!(device_at(b"1 2\n\n", Path::new("/")), None);
    }

    #[test]
    fn the_topmost_mount_counts() {
        let mounts = b"weir://a /mnt/a\\040b fuse.weir rw 0 0\nx /mnt/c fuse.weir rw 0 0\ny /mnt/c ext4 rw 0 0\n";
        assert_eq!(last_at(mounts, Path::new("/mnt/a b")), Some((&b"weir://a"[..], &b"fuse.weir"[..])));
        assert_eq!(last_at(mounts, Path::new("/mnt/c")), Some((&b"y"[..], &b"ext4"[..])));
        assert_eq!(last_at(mounts, Path::new("/mnt")), None);
    }

    #[test]
    fn escaped_blanks_in_paths_are_decoded() {
        assert_eq!(unescape(br"/a\040b\134c"), b"/a b\\c");
        assert_eq!(unescape(br"/a\04"), br"/a\04");
    }
}
