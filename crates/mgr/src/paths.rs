//! Paths of inodes, for log messages and findings that name a file.
//!
//! The namespace stores names by directory, and has no index from a file to its names. So a search for a path reads all
//! names. Only callers that report a problem search for paths, for many files in one search. The search yields
//! regularly, so that other tasks can run.

use meta::{Embedded, Namespace};
use std::collections::{BTreeMap, HashMap, HashSet};
use types::{FileId, Status};

/// Number of names that the search reads before it yields to other tasks.
const PAGE: usize = 2048;
/// Largest number of paths that the search returns for one file.
const PATHS_MAX: usize = 8;
/// Largest number of directories in a path. The limit ends the search if damaged directories form a cycle.
const DEPTH_MAX: usize = 4096;

/// The directories that the search has found: for each, its parent directory and its name there.
type Known = HashMap<FileId, (FileId, Vec<u8>)>;

/// Returns the paths of files from the root directory, as raw bytes that begin with `/`, at most eight for each file.
/// Files without a name have no entry. The path of the root directory is `/`.
pub(crate) async fn of(
    namespace: &Namespace<Embedded>,
    files: &[FileId],
) -> Result<BTreeMap<FileId, Vec<Vec<u8>>>, Status> {
    let mut paths: BTreeMap<FileId, Vec<Vec<u8>>> = BTreeMap::new();
    let wanted: HashSet<FileId> = files.iter().copied().filter(|file| *file != FileId::ROOT).collect();
    if wanted.len() < files.len() && files.contains(&FileId::ROOT) {
        paths.insert(FileId::ROOT, vec![b"/".to_vec()]);
    }
    let mut known = Known::new();
    let mut after = Some((FileId(0), 0));
    while let Some(from) = after.filter(|_| !wanted.is_empty()) {
        let page = namespace.names_of(&wanted, None, from, PAGE)?;
        for name in page.found {
            let told = paths.entry(name.child).or_default();
            if told.len() < PATHS_MAX {
                let mut path = directory(namespace, name.dir, &mut known).await?;
                path.push(b'/');
                path.extend_from_slice(&name.name);
                told.push(path);
            }
        }
        after = page.next;
        tokio::task::yield_now().await;
    }
    Ok(paths)
}

/// Returns the paths of one file as text, or its inode number if it has no name.
pub(crate) async fn text(namespace: &Namespace<Embedded>, file: FileId) -> String {
    let found = of(namespace, &[file]).await.unwrap_or_default();
    match found.get(&file) {
        Some(paths) if !paths.is_empty() => {
            let paths: Vec<_> = paths.iter().map(|path| String::from_utf8_lossy(path)).collect();
            paths.join(", ")
        }
        _ => format!("inode {file}"),
    }
}

/// Returns the path of a directory; empty for the root directory.
pub(crate) async fn directory_of(namespace: &Namespace<Embedded>, dir: FileId) -> Result<Vec<u8>, Status> {
    directory(namespace, dir, &mut Known::new()).await
}

/// Returns the path of a directory; empty for the root directory. If the parent of an ancestor is missing, the path
/// begins with the inode number of this ancestor.
async fn directory(namespace: &Namespace<Embedded>, dir: FileId, known: &mut Known) -> Result<Vec<u8>, Status> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut at = dir;
    while at != FileId::ROOT {
        let (parent, name) = match known.get(&at) {
            Some(found) => found.clone(),
            None => match entry(namespace, at).await? {
                Some(found) => {
                    known.insert(at, found.clone());
                    found
                }
                None => {
                    names.push(format!("(inode {at})").into_bytes());
                    break;
                }
            },
        };
        names.push(name);
        at = parent;
        if names.len() > DEPTH_MAX {
            names.push(b"(circle)".to_vec());
            break;
        }
    }
    names.reverse();
    Ok(names.into_iter().fold(Vec::new(), |path, name| [&path[..], b"/", &name].concat()))
}

/// Returns the parent of the directory `dir`, and the name of `dir` in it. Returns `None` if the parent is missing or
/// damaged.
async fn entry(namespace: &Namespace<Embedded>, dir: FileId) -> Result<Option<(FileId, Vec<u8>)>, Status> {
    let parent = match namespace.parent(dir) {
        Ok(parent) => parent,
        Err(Status::Stale | Status::NotDir | Status::Corrupt) => return Ok(None),
        Err(e) => return Err(e),
    };
    let wanted = HashSet::from([dir]);
    let mut after = Some((FileId(0), 0));
    while let Some(from) = after {
        let page = namespace.names_of(&wanted, Some(parent), from, PAGE)?;
        if let Some(name) = page.found.into_iter().next() {
            return Ok(Some((parent, name.name.to_vec())));
        }
        after = page.next;
        tokio::task::yield_now().await;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meta::{CreateMode, Format, merge};
    use types::{Cred, Fsid, SetAttrs, Timestamp};

    #[tokio::test]
    async fn every_name_of_a_file_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let engine = Embedded::create(&dir.path().join("store"), [3; 16], merge).unwrap();
        let (now, root) = (Timestamp::default(), Cred::root());
        let format =
            Format { fsid: Fsid([1; 16]), now, cookie_key: [2; 16], root_mode: 0o755, root_uid: 0, root_gid: 0 };
        let names = Namespace::format(engine, format).await.unwrap();
        let mode = SetAttrs { mode: Some(0o700), ..SetAttrs::default() };
        let a = names.mkdir(&root, now, FileId::ROOT, b"a", &mode).await.unwrap().attrs.id;
        let b = names.mkdir(&root, now, a, b"b", &mode).await.unwrap().attrs.id;
        let how = CreateMode::Guarded(mode);
        let file = names.create(&root, now, b, b"f", &how, None).await.unwrap().file.attrs.id;
        names.link(&root, now, file, FileId::ROOT, b"g").await.unwrap();
        for i in 0..PAGE {
            names.create(&root, now, a, format!("{i}").as_bytes(), &how, None).await.unwrap();
        }
        let gone = FileId(1 << 40);
        let found = of(&names, &[file, b, FileId::ROOT, gone]).await.unwrap();
        let mut of_file = found[&file].clone();
        of_file.sort();
        assert_eq!(of_file, [b"/a/b/f".to_vec(), b"/g".to_vec()]);
        assert_eq!(found[&b], [b"/a/b".to_vec()]);
        assert_eq!(found[&FileId::ROOT], [b"/".to_vec()]);
        assert!(!found.contains_key(&gone));
        assert_eq!(text(&names, b).await, "/a/b");
        assert_eq!(text(&names, gone).await, format!("inode {gone}"));
    }
}
