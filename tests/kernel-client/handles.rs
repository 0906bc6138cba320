//! Attacks with open_by_handle_at(2) and with new connections: a guest must get no byte of an export that the guest may
//! not access.
//!
//! The kernel's handle of an NFS file (`fs/nfs/export.c`) contains the number and type of the file, and the filehandle
//! of the server. Root in the guest may pass any handle, and so decides which filehandle the kernel sends in PUTFH.

use crate::guest::{Guest, HOST};
use crate::lab::Lab;
use crate::servers;
use data_encoding::HEXLOWER;
use mgr::ClusterFile;
use std::path::Path;

/// The Perl program that gets and opens kernel handles in the guest.
const SCRIPT: &str = include_str!("handles.pl");
/// Options for the restart of the mgr, after which the guest may no longer access `/users/closed` and `/other`. Before
/// the restart, the guest has used both directories.
const CLOSED: [&str; 6] =
    ["--export", "/users", "--export", "/users/closed,clients=10.99.0.0/16", "--export", "/public"];
/// Number of bytes before the server's filehandle in a kernel handle: these bytes contain the inode number and type
/// of the file, and the length of the filehandle.
const BEFORE: usize = 4 + 4 + 4 + 2;
/// Offset of the inode number of the file (eight bytes) in a filehandle of Weir. The inode number of the export's
/// root directory follows at offset [`ROOT`].
const FILE: usize = 20;
const ROOT: usize = 28;
const WEIR_LEN: usize = 52;

/// A kernel handle of a file, as the guest's kernel makes it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Handle {
    kind: String,
    bytes: Vec<u8>,
}

impl Handle {
    /// Returns the kernel handle of the file at `path` in the guest.
    fn of(guest: &mut Guest, path: &str) -> Handle {
        let told = guest.ok(&format!("perl /tmp/handles.pl name {path}"));
        let (kind, hex) = told.split_once(' ').expect("a type and a handle");
        let handle = Handle { kind: kind.to_owned(), bytes: HEXLOWER.decode(hex.as_bytes()).expect("hexadecimal") };
        let len = u16::from_le_bytes([handle.bytes[BEFORE - 2], handle.bytes[BEFORE - 1]]);
        assert_eq!(usize::from(len), WEIR_LEN, "{path}: {told}");
        handle
    }

    /// Returns the NFS filehandle that this kernel handle contains.
    fn weir(&self) -> &[u8] {
        &self.bytes[BEFORE..BEFORE + WEIR_LEN]
    }

    /// Returns the inode number of the file, from the NFS filehandle in this kernel handle.
    fn file(&self) -> [u8; 8] {
        self.weir()[FILE..ROOT].try_into().expect("eight bytes")
    }

    /// Returns the inode number of the export's root directory, from the NFS filehandle in this kernel handle.
    fn root(&self) -> [u8; 8] {
        self.weir()[ROOT..ROOT + 8].try_into().expect("eight bytes")
    }

    /// Returns a copy of this kernel file handle in which the embedded Weir filehandle is `weir`.
    fn with(&self, weir: &[u8]) -> Handle {
        let mut bytes = self.bytes.clone();
        bytes[BEFORE..BEFORE + WEIR_LEN].copy_from_slice(weir);
        Handle { bytes, ..self.clone() }
    }

    /// Returns the kernel handle as an input line for the Perl program.
    fn line(&self) -> String {
        format!("{} {}\n", self.kind, HEXLOWER.encode(&self.bytes))
    }
}

/// Saves kernel handles in a file of the guest, from which [`open`] reads them.
fn save(guest: &mut Guest, handles: &[Handle]) {
    let lines: String = handles.iter().map(Handle::line).collect();
    guest.ok(&format!("cat > /tmp/handles <<'END'\n{lines}END"));
}

/// Lets the guest open all saved handles in the file system at `mount`. Returns one line for each handle: the bytes or
/// names that the guest got, or the refusal.
fn open(guest: &mut Guest, mount: &str) -> Vec<String> {
    guest.ok(&format!("perl /tmp/handles.pl open {mount} </tmp/handles")).lines().map(str::to_owned).collect()
}

/// Returns the filehandle that the mgr makes for the file `file` in the export `root`, with the epoch of the filehandle
/// `like`.
fn genuine(home: &Path, like: &[u8], file: [u8; 8], root: [u8; 8]) -> Vec<u8> {
    let mut weir = [&like[..FILE], &file, &root].concat();
    let secret = ClusterFile::load(&home.join("cluster.toml")).expect("a cluster file").key;
    weir.extend(secret.file_handle_mac(&weir));
    weir
}

/// Creates small files, which the mgr stores with their metadata, and a large file, whose bytes the iods store.
fn fill(lab: &Lab) {
    for dir in ["/public", "/users", "/users/closed", "/users/closed/dir", "/users/closed/open", "/other"] {
        lab.run(["mkdir", dir]);
    }
    lab.put("/users/seen", b"SEEN");
    for name in ["/users/closed/control", "/users/closed/open/control"] {
        lab.put(name, b"CONTROL");
    }
    for name in ["/users/closed/data", "/users/closed/dir/data", "/other/data"] {
        lab.put(name, b"SECRET");
    }
    lab.put("/users/closed/large", &b"SECRET\n".repeat(300_000));
}

/// Directories and files that the guest may access before the restart of the mgr, but not after it.
const SECRETS: [&str; 6] = [
    "users/closed",
    "users/closed/data",
    "users/closed/large",
    "users/closed/dir",
    "users/closed/dir/data",
    "other/data",
];

#[test]
fn handles_and_reconnects_give_no_access_to_a_closed_export() {
    let home = tempfile::tempdir().unwrap();
    let mut lab = servers::start(home.path(), 2, &[]);
    fill(&lab);
    let mut guest = Guest::boot();
    let port = lab.mgr.proxy.address().port();
    guest.ok(&format!("cat > /tmp/handles.pl <<'END'\n{SCRIPT}END\nmkdir -p /tmp/users /tmp/public"));
    guest.mount(port, "vers=4.2");
    // First check that the attack itself works: the kernel must open handles of a file and a directory that the guest
    // may see.
    let controls = ["control", "open"].map(|name| Handle::of(&mut guest, &format!("/mnt/users/closed/{name}")));
    save(&mut guest, &controls);
    guest.ok("echo 3 > /proc/sys/vm/drop_caches");
    assert_eq!(open(&mut guest, "/mnt"), ["bytes CONTROL", "names . .. control bytes CONTROL"]);
    let stolen = SECRETS.map(|name| Handle::of(&mut guest, &format!("/mnt/{name}")));
    save(&mut guest, &stolen);
    hold(&mut guest);

    lab.mgr.stop();
    lab.mgr.restart_with(&CLOSED);
    // Let the process of `hold` continue. It still has files open on the guest's mount from before the restart, and
    // this mount connects to the restarted mgr.
    let held = let_go(&mut guest);
    assert!(!held.contains("SECRET") && held.matches("refused ").count() == stolen.len(), "{held}");
    let mount = |path: &str, at: &str| format!("mount.nfs4 -o vers=4.2,noresvport,port={port} {HOST}:{path} {at}");
    let again = format!("{} && {}", mount("/users", "/tmp/users"), mount("/", "/mnt"));
    guest.ok(&format!("umount /mnt; {again}; {}", mount("/public", "/tmp/public")));
    for round in ["closed", "cut off", "mounted again"] {
        let seen = Handle::of(&mut guest, "/tmp/users/seen");
        assert_eq!(
            genuine(home.path(), seen.weir(), seen.file(), seen.root()),
            seen.weir(),
            "the test makes other handles than the mgr"
        );
        let mut tried = stolen.to_vec();
        tried.extend(stolen.iter().flat_map(|secret| forged(home.path(), &seen, secret, &stolen[0])));
        // Append the handle of a visible file. If the guest can open it, the kernel really sends the filehandles to the
        // server.
        tried.push(seen);
        save(&mut guest, &tried);
        for at in ["/tmp/users", "/tmp/public", "/mnt"] {
            let got = open(&mut guest, at);
            assert_eq!(got.len(), tried.len());
            let (last, others) = got.split_last().expect("one at least");
            assert_eq!(last, "bytes SEEN", "{round}: {at}");
            let refused = |(got, handle): (&String, &Handle)| {
                assert!(got.starts_with("refused "), "{round}: {at}: {handle:?}: {got}");
            };
            others.iter().zip(&tried).for_each(refused);
        }
        let looks = "cat /mnt/users/closed/data /mnt/users/closed/large /tmp/users/closed/data /tmp/users/closed/dir/data \
                     /tmp/users/closed/large /mnt/other/data; ls -lR /tmp/users /mnt/users";
        let said = guest.ok(&format!("({looks}) 2>&1; true"));
        assert!(!said.contains("SECRET") && said.contains("Permission denied"), "{round}: {said}");
        if round == "closed" {
            let before = lab.mgr.proxy.connections();
            lab.mgr.proxy.cut();
            assert_eq!(guest.ok("echo 3 > /proc/sys/vm/drop_caches; cat /tmp/users/seen"), "SEEN");
            assert!(lab.mgr.proxy.connections() > before, "the guest has not connected again");
        } else {
            guest.ok(&format!("umount /tmp/users; umount /mnt/users; umount /mnt; {again}"));
        }
    }
    for path in ["/users/closed", "/users/closed/dir", "/other"] {
        guest.ok(&format!("! {} 2>/dev/null", mount(path, "/tmp")));
    }
}

/// Returns handles of a secret file that the guest never received. One handle is the handle of a visible file, with
/// the inode number replaced by that of the secret file. The other handles contain filehandles that the mgr gives to
/// clients that may access `/users/closed` or the whole file system.
fn forged(home: &Path, seen: &Handle, secret: &Handle, export: &Handle) -> Vec<Handle> {
    let file = secret.file();
    let mut renumbered = seen.weir().to_vec();
    renumbered[FILE..ROOT].copy_from_slice(&file);
    let root_of_all = 1u64.to_be_bytes();
    let of_others = [export.file(), root_of_all].map(|root| genuine(home, seen.weir(), file, root));
    // The kernel first looks up the inode in its cache, by inode number and type. So make two handles of each
    // filehandle: one with the inode number and type of the visible file, and one with the inode number and type of
    // the secret file.
    let weir = [renumbered, secret.weir().to_vec()].into_iter().chain(of_others);
    weir.flat_map(|weir| [seen.with(&weir), secret.with(&weir)]).collect()
}

/// Starts a process in the guest whose current directory is `/users/closed`. The process opens the root of the mount
/// and two files. After [`let_go`], the process uses these descriptors and its current directory, and opens files by
/// the handles that `name_to_handle_at(2)` returned before.
fn hold(guest: &mut Guest) {
    let work = "cat <&5; cat <&6; cat data large dir/data; ls -l; ls -l ..; cat ../closed/data; \
                perl /tmp/handles.pl open 7 </tmp/handles";
    let opened = "touch /tmp/holds; until [ -e /tmp/go ]; do usleep 50000; done";
    guest.ok(&format!(
        "cd /mnt/users/closed; (exec 5<data 6<large 7</mnt; {opened}; {work}; touch /tmp/done) >/tmp/held 2>&1 </dev/null &
         until [ -e /tmp/holds ]; do usleep 50000; done"
    ));
}

/// Lets the process that [`hold`] has started continue. Returns its output.
fn let_go(guest: &mut Guest) -> String {
    guest.ok("touch /tmp/go; until [ -e /tmp/done ]; do usleep 50000; done; cat /tmp/held")
}
