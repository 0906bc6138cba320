//! What a description says: definitions in order, and the questions an emitter asks of them.

use std::collections::HashMap;

/// A number, written out or named.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    /// Written out.
    Number(i128),
    /// The name of a constant or enum value.
    Name(String),
}

/// The type of a declaration before its shape is applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Base {
    /// `int`
    Int,
    /// `unsigned int`
    Unsigned,
    /// `hyper`
    Hyper,
    /// `unsigned hyper`
    UnsignedHyper,
    /// `bool`
    Bool,
    /// `opaque`
    Opaque,
    /// `string`
    String,
    /// Something defined in the description.
    Named(String),
}

/// How often the base occurs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Shape {
    /// Once.
    Plain,
    /// `[n]`
    Fixed(Value),
    /// `<n>` or `<>`
    Variable(Option<Value>),
    /// `*`
    Optional,
}

/// A field, a body of a union arm or a typedef.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Declaration {
    /// Its name.
    pub name: String,
    /// Its type.
    pub base: Base,
    /// How often.
    pub shape: Shape,
}

/// One `case` with its body; several cases over one body become several arms.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Arm {
    /// The value that selects it.
    pub case: Value,
    /// What follows; `None` is `void`.
    pub body: Option<Declaration>,
}

/// A discriminated union.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Union {
    /// Its name.
    pub name: String,
    /// The type of the discriminant.
    pub switch: Base,
    /// Arms in order.
    pub arms: Vec<Arm>,
    /// The `default` arm, if there is one, and its body.
    pub default: Option<Option<Declaration>>,
}

/// One definition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Definition {
    /// `const`
    Const(String, Value),
    /// `typedef`
    Typedef(Declaration),
    /// `enum`
    Enum(String, Vec<(String, Value)>),
    /// `struct`
    Struct(String, Vec<Declaration>),
    /// `union`
    Union(Union),
}

impl Definition {
    /// The name it defines.
    pub fn name(&self) -> &str {
        match self {
            Definition::Const(name, _) | Definition::Enum(name, _) | Definition::Struct(name, _) => name,
            Definition::Typedef(declaration) => &declaration.name,
            Definition::Union(union) => &union.name,
        }
    }
}

/// All definitions of all descriptions.
#[derive(Default, Debug)]
pub struct Model {
    definitions: Vec<Definition>,
    index: HashMap<String, usize>,
    numbers: HashMap<String, i128>,
}

impl Model {
    /// Adds a definition.
    ///
    /// # Errors
    /// A name that is taken, or a number whose name is not known yet.
    pub fn add(&mut self, definition: Definition) -> Result<(), String> {
        match &definition {
            Definition::Const(name, value) => self.number(name, value)?,
            Definition::Enum(_, values) => values.iter().try_for_each(|(name, value)| self.number(name, value))?,
            _ => {}
        }
        let name = definition.name().to_string();
        if self.index.insert(name.clone(), self.definitions.len()).is_some() {
            return Err(format!("{name} is defined twice"));
        }
        self.definitions.push(definition);
        Ok(())
    }

    /// Adds values to an enum, as a later RFC does.
    ///
    /// # Errors
    /// No such enum, or a value that is taken.
    pub fn extend_enum(&mut self, name: &str, more: Vec<(String, Value)>) -> Result<(), String> {
        more.iter().try_for_each(|(value_name, value)| self.number(value_name, value))?;
        match self.get_mut(name) {
            Some(Definition::Enum(_, values)) => values.extend(more),
            _ => return Err(format!("no enum {name} to extend")),
        }
        Ok(())
    }

    /// Adds arms to a union, as a later RFC does.
    ///
    /// # Errors
    /// No such union.
    pub fn extend_union(&mut self, name: &str, more: Vec<Arm>) -> Result<(), String> {
        match self.get_mut(name) {
            Some(Definition::Union(union)) => union.arms.extend(more),
            _ => return Err(format!("no union {name} to extend")),
        }
        Ok(())
    }

    fn number(&mut self, name: &str, value: &Value) -> Result<(), String> {
        let number = self.value(value)?;
        match self.numbers.insert(name.to_string(), number) {
            None => Ok(()),
            Some(_) => Err(format!("{name} has two values")),
        }
    }

    fn get_mut(&mut self, name: &str) -> Option<&mut Definition> {
        self.index.get(name).map(|&at| &mut self.definitions[at])
    }

    /// All definitions, in order.
    pub fn definitions(&self) -> &[Definition] {
        &self.definitions
    }

    /// The definition of `name`.
    pub fn get(&self, name: &str) -> Option<&Definition> {
        self.index.get(name).map(|&at| &self.definitions[at])
    }

    /// The number behind a value.
    ///
    /// # Errors
    /// A name that has no number.
    pub fn value(&self, value: &Value) -> Result<i128, String> {
        match value {
            Value::Number(number) => Ok(*number),
            Value::Name(name) => self.numbers.get(name).copied().ok_or_else(|| format!("{name} has no value")),
        }
    }

    /// Whether `name` is a struct that ends in a pointer to the next one of its kind: XDR's linked list.
    pub fn is_list(&self, name: &str) -> bool {
        let Some(Definition::Struct(_, fields)) = self.get(name) else { return false };
        fields.last().is_some_and(|last| last.shape == Shape::Optional && last.base == Base::Named(name.to_string()))
    }
}
