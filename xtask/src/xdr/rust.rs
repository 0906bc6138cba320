//! Mapping from XDR types to Rust: the Rust type of a declaration, and the code that reads values, writes values, and
//! makes test values.

use super::bounds;
use super::model::{Base, Declaration, Definition, Model, Shape};
use std::cell::RefCell;
use std::collections::HashSet;

/// Enums with a range for private use. The generator emits these enums as plain numbers.
///
/// Layout types have such a range (RFC 8881 section 3.3.13). For an unknown type, a server must return an NFS error
/// instead of refusing the message.
const OPEN_ENUMS: &[&str] = &["layouttype4"];

/// An XDR type after resolution of all typedefs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// A number or boolean, by the name of its Rust type, which is also the name of its reader and writer.
    Scalar(&'static str),
    /// A generated struct, enum or union.
    Named(String),
    /// Opaque data of fixed length.
    Fixed(i128),
    /// Opaque data of variable length, with its bound.
    Opaque(String),
    /// An array of variable length, with its bound.
    Array(Box<Resolved>, String),
    /// Optional data.
    Optional(Box<Resolved>),
    /// A linked list of structs, with its bound.
    List(String, String),
}

/// Resolver of the types of one model.
pub struct Types<'a> {
    model: &'a Model,
    asked: RefCell<HashSet<String>>,
}

/// Returns whether the generator emits this enum as plain numbers.
pub fn is_open(name: &str) -> bool {
    OPEN_ENUMS.contains(&name)
}

/// Returns an XDR name as a Rust identifier; keywords become raw identifiers.
pub fn ident(name: &str) -> String {
    const KEYWORDS: &[&str] = &["as", "fn", "in", "loop", "match", "mod", "move", "ref", "type", "use", "where"];
    if KEYWORDS.contains(&name) { format!("r#{name}") } else { name.to_string() }
}

impl<'a> Types<'a> {
    /// Creates the resolver for the types of `model`.
    pub fn new(model: &'a Model) -> Self {
        Types { model, asked: RefCell::default() }
    }

    /// Returns the rows of the table of bounds that no type used.
    pub fn unused_bounds(&self) -> Vec<&'static str> {
        bounds::unused(&self.asked.borrow())
    }

    /// Resolves the type of a declaration in the struct or union with the name `owner`. `owner` is empty for a typedef.
    ///
    /// # Errors
    /// The type is not defined, or an item of variable length has no bound.
    pub fn resolve(&self, declaration: &Declaration, owner: &str) -> Result<Resolved, String> {
        let own = if owner.is_empty() { declaration.name.clone() } else { format!("{owner}.{}", declaration.name) };
        self.shaped(declaration, vec![own])
    }

    /// Resolves the type of a declaration. `names` are the names under which a bound may be listed, the most specific
    /// name first.
    fn shaped(&self, declaration: &Declaration, names: Vec<String>) -> Result<Resolved, String> {
        match &declaration.shape {
            Shape::Plain => self.base(&declaration.base, names),
            Shape::Fixed(size) if declaration.base == Base::Opaque => Ok(Resolved::Fixed(self.model.value(size)?)),
            Shape::Fixed(_) => Err(format!("{}: fixed arrays do not occur in NFS", names[0])),
            Shape::Variable(bound) => {
                let bound = match bound {
                    Some(value) => self.model.value(value)?.to_string(),
                    None => self.bound(&names)?,
                };
                if matches!(declaration.base, Base::Opaque | Base::String) {
                    return Ok(Resolved::Opaque(bound));
                }
                Ok(Resolved::Array(Box::new(self.base(&declaration.base, vec![])?), bound))
            }
            Shape::Optional => match &declaration.base {
                Base::Named(name) if self.model.is_list(name) => {
                    Ok(Resolved::List(name.clone(), self.bound(std::slice::from_ref(name))?))
                }
                base => Ok(Resolved::Optional(Box::new(self.base(base, names)?))),
            },
        }
    }

    fn bound(&self, names: &[String]) -> Result<String, String> {
        self.asked.borrow_mut().extend(names.iter().cloned());
        bounds::bound(names).map(str::to_string).ok_or_else(|| format!("no bound for any of {names:?}"))
    }

    fn base(&self, base: &Base, mut names: Vec<String>) -> Result<Resolved, String> {
        Ok(Resolved::Scalar(match base {
            Base::Int => "i32",
            Base::Unsigned => "u32",
            Base::Hyper => "i64",
            Base::UnsignedHyper => "u64",
            Base::Bool => "bool",
            Base::Opaque | Base::String => return Err(format!("{names:?}: opaque data need a length")),
            Base::Named(name) if is_open(name) => "u32",
            Base::Named(name) => match self.model.get(name) {
                Some(Definition::Typedef(declaration)) => {
                    names.push(name.clone());
                    return self.shaped(declaration, names);
                }
                Some(Definition::Const(..)) | None => return Err(format!("{names:?}: no type {name}")),
                Some(_) => return Ok(Resolved::Named(name.clone())),
            },
        }))
    }

    /// Returns the Rust type of a declaration; the type keeps its name in the RFC.
    pub fn text(&self, declaration: &Declaration, resolved: &Resolved) -> String {
        let base = match &declaration.base {
            Base::Named(name) => name.clone(),
            _ => match resolved {
                Resolved::Array(item, _) | Resolved::Optional(item) => self.resolved_text(item),
                other => return self.resolved_text(other),
            },
        };
        match (&declaration.shape, resolved) {
            (Shape::Plain, _) => base,
            (_, Resolved::List(..) | Resolved::Array(..)) => format!("Vec<{base}>"),
            (_, Resolved::Optional(_)) => format!("Option<Box<{base}>>"),
            (_, other) => self.resolved_text(other),
        }
    }

    fn resolved_text(&self, resolved: &Resolved) -> String {
        match resolved {
            Resolved::Scalar(name) => name.to_string(),
            Resolved::Named(name) => name.clone(),
            Resolved::Fixed(size) => format!("[u8; {size}]"),
            Resolved::Opaque(_) => "Bytes".to_string(),
            Resolved::Array(item, _) => format!("Vec<{}>", self.resolved_text(item)),
            Resolved::Optional(item) => format!("Option<Box<{}>>", self.resolved_text(item)),
            Resolved::List(name, _) => format!("Vec<{name}>"),
        }
    }

    /// Returns whether a type may derive `Copy`, and whether it may derive `Default`.
    pub fn traits(&self, resolved: &Resolved) -> (bool, bool) {
        match resolved {
            Resolved::Scalar(_) => (true, true),
            Resolved::Fixed(size) => (true, *size <= 32),
            Resolved::Opaque(_) | Resolved::Array(..) | Resolved::Optional(_) | Resolved::List(..) => (false, true),
            Resolved::Named(name) => match self.model.get(name) {
                Some(Definition::Enum(..)) => (true, false),
                Some(Definition::Struct(name, fields)) => self.struct_traits(name, fields),
                Some(Definition::Union(union)) => {
                    let bodies = union.arms.iter().map(|arm| &arm.body).chain(&union.default).flatten();
                    let copy = |d| self.resolve(d, &union.name).is_ok_and(|r| self.traits(&r).0);
                    (bodies.into_iter().all(copy), false)
                }
                _ => (false, false),
            },
        }
    }

    /// Returns whether a struct may derive `Copy`, and whether it may derive `Default`.
    pub fn struct_traits(&self, name: &str, fields: &[Declaration]) -> (bool, bool) {
        let each = |d| self.resolve(d, name).map_or((false, false), |r| self.traits(&r));
        fields.iter().map(each).fold((true, true), |all, one| (all.0 && one.0, all.1 && one.1))
    }
}

/// Returns the source of an expression that reads a value from `input`.
pub fn read(resolved: &Resolved) -> String {
    match resolved {
        Resolved::Scalar(name) => format!("input.{name}()?"),
        Resolved::Named(name) => format!("{name}::decode(input)?"),
        Resolved::Fixed(_) => "input.fixed()?".to_string(),
        Resolved::Opaque(bound) => format!("input.opaque({bound})?"),
        Resolved::Array(item, bound) => format!("input.array({bound}, {})?", reader(item)),
        Resolved::Optional(item) => format!("input.optional({})?.map(Box::new)", reader(item)),
        Resolved::List(name, bound) => format!("read_list(input, {bound}, {name}::decode)?"),
    }
}

/// Returns the source of a function that reads a value from its argument.
fn reader(resolved: &Resolved) -> String {
    match resolved {
        Resolved::Scalar(name) => format!("Reader::{name}"),
        Resolved::Named(name) => format!("{name}::decode"),
        Resolved::Fixed(_) => "Reader::fixed".to_string(),
        other => {
            let text = read(other);
            format!("|input| {}", text.strip_suffix('?').unwrap_or(&text))
        }
    }
}

/// Returns the source of a statement that writes `value` to `out`. If `by_ref` is set, `value` is the name of a
/// reference.
pub fn write(resolved: &Resolved, value: &str, by_ref: bool) -> String {
    let (star, amp) = if by_ref { ("*", "") } else { ("", "&") };
    match resolved {
        Resolved::Scalar(name) => format!("out.{name}({star}{value});"),
        Resolved::Named(_) => format!("{value}.encode(out);"),
        Resolved::Fixed(_) => format!("out.fixed({amp}{value});"),
        Resolved::Opaque(_) => format!("out.opaque({amp}{value});"),
        Resolved::Array(item, _) => format!("out.array({amp}{value}, {});", writer(item)),
        Resolved::Optional(item) => format!("out.optional({value}.as_deref(), {});", writer(item)),
        Resolved::List(..) => format!("write_list(out, {amp}{value});"),
    }
}

fn writer(resolved: &Resolved) -> String {
    match resolved {
        Resolved::Opaque(_) => "Writer::opaque".to_string(),
        other => format!("|out, item| {}", write(other, "item", true).trim_end_matches(';')),
    }
}

/// Returns the source of an expression that makes a test value from `seed`.
pub fn arbitrary(resolved: &Resolved) -> String {
    match resolved {
        Resolved::Scalar(name) => format!("seed.{name}()"),
        Resolved::Named(name) => format!("{name}::arbitrary(seed)"),
        Resolved::Fixed(_) => "seed.fixed()".to_string(),
        Resolved::Opaque(bound) => format!("seed.opaque({bound})"),
        Resolved::Array(item, bound) => format!("seed.array({bound}, {})", maker(item)),
        Resolved::Optional(item) => format!("seed.optional({}).map(Box::new)", maker(item)),
        Resolved::List(name, bound) => format!("seed.array({bound}, {name}::arbitrary)"),
    }
}

fn maker(resolved: &Resolved) -> String {
    match resolved {
        Resolved::Scalar(name) => format!("Seed::{name}"),
        Resolved::Named(name) => format!("{name}::arbitrary"),
        Resolved::Fixed(_) => "Seed::fixed".to_string(),
        other => format!("|seed| {}", arbitrary(other)),
    }
}
