"""perceptron"""
