"""Fails loudly when TensorFlow moves what autocast needs of it."""

import numpy as np
import pytest
import tensorflow as tf

from tf_mixprec.autocast import tensorflow_internals as internals


def test_a_graph_takes_in_what_is_outside():
    @tf.function
    def function(x):
        graph = internals.new_graph("test")
        with graph.as_default():
            y = x + 1
        ((outside, inside),) = internals.captures(graph)
        assert outside is x
        assert inside.graph is graph
        assert inside is y.op.inputs[0]
        return x

    function(tf.ones(2))


def test_conditions_over_tensors_are_converted():
    def function(x):
        return x + 1 if tf.reduce_sum(x) > 0 else x - 1

    @tf.autograph.experimental.do_not_convert
    def converted(x):
        return internals.converted(function)(x)

    assert tf.function(converted)(tf.ones(())) == 2
    with pytest.raises(Exception, match="symbolic"):
        tf.function(function, autograph=False)(tf.ones(()))


def test_kernels_of_an_op():
    found = internals.kernel_dtypes("MatMul", "CPU")
    types = set().union(*(each["T"] for each in found))
    assert tf.float32.as_datatype_enum in types
    assert tf.bfloat16.as_datatype_enum in types
    assert tf.string.as_datatype_enum not in types


def test_ops_that_exist():
    assert internals.op_exists("MatMul")
    assert not internals.op_exists("MatMull")


def test_types_in_attributes():
    one = internals.type_attribute(tf.bfloat16)
    assert tf.as_dtype(one.type) == tf.bfloat16
    some = internals.types_attribute([tf.float16, tf.int32])
    assert [tf.as_dtype(n) for n in some.list.type] == [tf.float16, tf.int32]


def test_the_gradient_function_of_a_custom_gradient():
    @tf.custom_gradient
    def doubled(x):
        return x * 1, lambda dy: dy * 2

    graph = internals.new_graph("test")
    with graph.as_default():
        doubled(tf.ones(()))
        (op,) = (o for o in graph.get_operations() if o.type == "IdentityN")
        function = internals.gradient_function(op)
        *_, gradient = function(op, tf.ones(()), None)
    assert gradient.op.type == "Mul"


def test_the_graph_of_a_function_is_the_traced_one():
    seen = []

    @tf.function
    def inner(x):
        seen.append(x.graph)
        return x + 1

    graph = internals.new_graph("test")
    with graph.as_default():
        y = inner(tf.ones(()))
    op = y.op
    assert op.type in ("PartitionedCall", "StatefulPartitionedCall")
    found = internals.function_graph(graph, op.get_attr("f").name, op)
    assert found is seen[-1]
    with pytest.raises(KeyError):
        internals.function_graph(graph, "no such function", op)


def test_functions_are_copied_with_the_ops_that_refer_to_them():
    @tf.function
    def function():
        source = internals.new_graph("test")
        with source.as_default():
            data = tf.data.Dataset.range(3).map(lambda i: i * 2)
            variant = data._variant_tensor
        target = tf.compat.v1.get_default_graph()
        name = variant.op.get_attr("f").name
        internals.copy_functions(source, target, variant.op)
        assert target._get_function(name) is not None
        return tf.zeros(())

    np.testing.assert_array_equal(function(), 0.0)
