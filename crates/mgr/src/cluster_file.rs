//! The cluster file: identity and secret of one file system. The mgr and all iods of the file system have a copy, which
//! only its owner may read.

use crate::error::{Error, io_error, random};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use types::{Fsid, StoreId};
use wire::native::Key;

/// The content of a cluster file. Its `Debug` output does not show the key.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    /// Identity of the file system.
    pub fsid: Fsid,
    /// The secret with which the mgr signs capabilities and tickets.
    pub key: Key,
    /// Identity of the metadata store of the file system; `None` in a cluster file that names no store.
    pub store: Option<StoreId>,
}

/// Largest size of a cluster file that Weir reads, in bytes.
const SIZE_MAX: u64 = 4096;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    fsid: String,
    key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    store: Option<String>,
}

impl ClusterFile {
    /// Creates a new file system identity and a new random secret, and writes both durably to `path` with mode 0600. No
    /// file may exist at `path`.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let hint = "make its directory first";
        let (fsid, key) = (Fsid(*uuid::Uuid::new_v4().as_bytes()), random::<32>()?);
        let hex: String = key.iter().map(|b| format!("{b:02x}")).collect();
        let text = format!(
            "# Identity and secret of a Weir file system. Whoever reads this file can read and change all data.\n\
             # Every daemon of the file system needs a copy.\nfsid = \"{fsid}\"\nkey = \"{hex}\"\n"
        );
        let file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(|e| match e.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Exists {
                path: path.to_owned(),
                hint: "it may be the only key to existing data: choose another name, or move it away if it is not",
            },
            _ => io_error(path, "make the cluster file", hint, e),
        })?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|e| io_error(path, "write the cluster file", hint, e))?;
        Ok(ClusterFile { fsid, key: Key::new(key), store: None })
    }

    /// Reads the cluster file at `path`. Refuses a file that users other than its owner may read.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let hint = "`weir mkfs` makes a cluster file; copy it to every host that runs a daemon of the file system";
        let failed = |e| io_error(path, "read the cluster file", hint, e);
        let bad = |reason: &str| Error::BadFile { path: path.to_owned(), reason: reason.to_owned() };
        let meta = std::fs::metadata(path).map_err(failed)?;
        if meta.mode() & 0o077 != 0 {
            return Err(bad("others can read this secret: run `chmod 600` on it"));
        }
        if meta.len() > SIZE_MAX {
            return Err(bad("too long for a cluster file"));
        }
        let text = std::fs::read_to_string(path).map_err(failed)?;
        // Drop the error text of the parser: the text quotes the invalid line, which may contain the secret.
        let text: Text = toml::from_str(&text)
            .map_err(|_| bad("not a cluster file: it must hold fsid = \"...\", key = \"...\", perhaps store = \"...\", and nothing else"))?;
        let fsid = text.fsid.parse().map_err(|e| bad(&format!("fsid: {e}")))?;
        let key = parse_key(&text.key).ok_or_else(|| bad("key: expected 64 hexadecimal digits"))?;
        let store = text.store.map(|store| store.parse()).transpose().map_err(|e| bad(&format!("store: {e}")))?;
        Ok(ClusterFile { fsid, key: Key::new(key), store })
    }

    /// Adds the identity of the metadata store to this cluster file, and rewrites the file at `path` durably.
    pub fn name_store(&mut self, path: &Path, store: StoreId) -> Result<(), Error> {
        let hint = "another process removed it meanwhile";
        let failed = |e| io_error(path, "write the cluster file", hint, e);
        let mut text = std::fs::read_to_string(path).map_err(failed)?;
        text.push_str(&format!(
            "# The metadata store of the file system. There must be no second one.\nstore = \"{store}\"\n"
        ));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        // An interrupted rewrite of the cluster file may have left this temporary file, so remove it.
        let _ = std::fs::remove_file(&new);
        let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
        std::fs::rename(&new, path).map_err(failed)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        std::fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        self.store = Some(store);
        Ok(())
    }
}

fn parse_key(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    let bytes: Vec<u8> = digits?.chunks(2).filter_map(|pair| Some(pair[0] << 4 | pair.get(1)?)).collect();
    if text.len() == 64 { bytes.try_into().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mac(file: &ClusterFile) -> [u8; 16] {
        file.key.derived_id(&file.fsid.0)
    }

    #[test]
    fn written_files_are_read_back_and_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        let made = ClusterFile::create(&path).unwrap();
        let read = ClusterFile::load(&path).unwrap();
        assert_eq!((read.fsid, mac(&read)), (made.fsid, mac(&made)));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(matches!(ClusterFile::create(&path), Err(Error::Exists { .. })));
        assert_eq!(mac(&ClusterFile::load(&path).unwrap()), mac(&made));
        let other = ClusterFile::create(&dir.path().join("other")).unwrap();
        assert_ne!((other.fsid, mac(&other)), (made.fsid, mac(&made)));
        let mut named = read;
        named.name_store(&path, StoreId([7; 16])).unwrap();
        let read = ClusterFile::load(&path).unwrap();
        assert_eq!((read.store, read.fsid, mac(&read)), (Some(StoreId([7; 16])), made.fsid, mac(&made)));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!format!("{made:?}").contains(&std::fs::read_to_string(&path).unwrap()[200..]));
    }

    #[test]
    fn errors_for_invalid_files_do_not_show_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cluster.toml");
        assert!(ClusterFile::load(&path).unwrap_err().to_string().contains("weir mkfs"));
        assert!(ClusterFile::create(&path.join("x")).unwrap_err().to_string().contains("directory"));
        let key = "0123456789abcdef".repeat(4);
        let fsid = "00010203-0405-0607-0809-0a0b0c0d0e0f";
        let write = |text: &str, mode| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let good = format!("fsid = \"{fsid}\"\nkey = \"{key}\"\n");
        write(&good, 0o600);
        ClusterFile::load(&path).unwrap();
        write(&good, 0o640);
        assert!(ClusterFile::load(&path).unwrap_err().to_string().contains("chmod 600"));
        for text in [
            "".to_owned(),
            format!("fsid = \"{fsid}\"\n"),
            format!("{good}more = 1\n"),
            format!("fsid = \"{fsid}\"\nkey = \"{key}0\"\n"),
            format!("fsid = \"{fsid}\"\nkey = \"{}g\"\n", &key[1..]),
            format!("{good}store = \"0\"\n"),
            format!("fsid = \"0\"\nkey = \"{key}\"\n"),
            format!("fsid = \"{fsid}\"\nkey = {key}\n"),
            "x".repeat(5000),
        ] {
            write(&text, 0o600);
            let error = ClusterFile::load(&path).unwrap_err().to_string();
            assert!(error.starts_with(path.to_str().unwrap()) && !error.contains(&key[1..60]), "{error}");
        }
    }
}
